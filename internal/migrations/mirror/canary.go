package mirror

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	// roleReach is that of the canaries in the target.
	roleReach   = "reach"
	maxCanaries = 8
	// reachTime is how long a canary tries, canaryLimit how long all of it may take.
	reachTime   = 45 * time.Second
	canaryLimit = 5 * time.Minute
)

func (s *Spec) tries() bool {
	return s.Canary.Mode == v1alpha1.PodCanaryRun && len(s.Canary.Targets) > 0
}

// absentSecrets finds missing pull secrets: of agents in the source, of canaries in the target.
func (j *Job) absentSecrets(ctx context.Context, source, target client.Reader) ([]findings.Result, error) {
	out, err := j.agents().AbsentSecrets(ctx, source)
	if err != nil || !j.Spec.tries() || j.WithoutTarget {
		return out, err
	}
	there, err := j.Tools.ImageOf(&j.Spec.Common).Needed(ctx, target, ", or set "+root+".canary.mode: Disabled")
	for _, r := range there {
		r.Message = "in the target: " + r.Message
		out = append(out, r)
	}
	return out, err
}

// UnreachedError says what pods of the target have not reached.
type UnreachedError struct {
	From []string
}

func (e *UnreachedError) Error() string {
	return "pods of the target do not reach all of " + root + ".canary.targets: " + strings.Join(e.From, "; ")
}

func (*UnreachedError) Advice() string {
	return "no name has been switched by this run; see that routes, security groups and firewalls let the nodes and pods of the target in, " +
		"as they do those of the source, then run the same command again"
}

var _ fault.Adviser = (*UnreachedError)(nil)

// canaryStep has throw-away pods of the target connect to what the Migration names.
type canaryStep struct {
	target    *cluster.Cluster
	migration string
	image     pull.Image
	targets   []string
	on        []string
}

var (
	_ engine.Timed     = (*canaryStep)(nil)
	_ engine.Waiter    = (*canaryStep)(nil)
	_ engine.Abandoner = (*canaryStep)(nil)
	_ engine.Previewer = (*canaryStep)(nil)
)

func (*canaryStep) ID() string              { return "canary" }
func (*canaryStep) Title() string           { return "Connect to targets from pods of the target cluster" }
func (*canaryStep) Role() engine.StepRole   { return engine.RoleOwn }
func (*canaryStep) Deadline() time.Duration { return canaryLimit }

func (*canaryStep) Waits() {}

// State implements engine.Step: what an earlier run reached says nothing of now.
func (*canaryStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *canaryStep) pods() *connectivity.Pods {
	return &connectivity.Pods{Client: s.target, Migration: s.migration, Image: s.image}
}

func (s *canaryStep) Do(ctx context.Context) error {
	if err := connectivity.Remove(ctx, s.target, s.migration); err != nil {
		return err
	}
	nodes, err := cluster.List[corev1.Node](ctx, s.target, &corev1.NodeList{})
	if err != nil {
		return fmt.Errorf("listing nodes of the target: %w", err)
	}
	if s.on = spread(nodes, maxCanaries); len(s.on) == 0 {
		return engine.NotYet("the target has no node that is ready")
	}
	if err := s.found(ctx); err != nil {
		return err
	}
	for _, node := range s.on {
		err := s.pods().Start(ctx, roleReach, node, "call", "--timeout="+reachTime.String(), "--reach="+strings.Join(s.targets, ","))
		if unprovided(err) {
			return engine.NotYet("in the target: %w", err)
		}
		if err != nil {
			return fmt.Errorf("in the target: %w", err)
		}
	}
	return nil
}

// unprovided reports whether a new namespace has no ServiceAccount yet: there is no reason code.
func unprovided(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

func (s *canaryStep) found(ctx context.Context) error {
	ns, err := s.namespace(ctx)
	if err != nil {
		return err
	}
	if ns != nil && !ns.DeletionTimestamp.IsZero() {
		return engine.NotYet("namespace %s is being deleted in the target", ns.Name)
	}
	if ns != nil {
		return nil
	}
	ns = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace, Labels: s.pods().Labels(roleReach)}}
	err = s.target.Create(ctx, ns, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s in the target: %w", ns.Name, err)
	}
	return nil
}

func (s *canaryStep) namespace(ctx context.Context) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	err := s.target.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %s in the target: %w", v1alpha1.SystemNamespace, err)
	}
	return ns, nil
}

// Verify waits until all canaries have ended, so that all that is not reached is in one error.
func (s *canaryStep) Verify(ctx context.Context) error {
	pods, err := s.pods().Find(ctx, roleReach)
	if err != nil {
		return err
	}
	failed := &UnreachedError{}
	for _, node := range s.on {
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
		if i < 0 { // something has deleted it; what it did not say is no yes
			return cmp.Or(s.Do(ctx), engine.NotYet("the canary on node %s of the target is gone", node))
		}
		text, bad, err := connectivity.Said(&pods[i])
		if err != nil {
			return fmt.Errorf("in the target: %w", err)
		}
		if bad {
			failed.From = append(failed.From, "from node "+node+": "+text)
		}
	}
	if len(failed.From) > 0 {
		return failed
	}
	return s.Abandon(ctx)
}

// Abandon removes the namespace too, if a canary was what it was made for and the target has no
// migration of its own.
func (s *canaryStep) Abandon(ctx context.Context) error {
	if err := connectivity.Remove(ctx, s.target, s.migration); err != nil {
		return err
	}
	ns, err := s.namespace(ctx)
	if err != nil || ns == nil || ns.Labels[connectivity.Label] != roleReach || ns.Labels[v1alpha1.LabelMigration] != s.migration {
		return err
	}
	others, err := migration.List(ctx, s.target)
	if err != nil || len(others) > 0 {
		return err
	}
	return client.IgnoreNotFound(s.target.Delete(ctx, ns, client.Preconditions{UID: &ns.UID}))
}

func (s *canaryStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "create", Object: "Namespace " + v1alpha1.SystemNamespace + " in the target"},
		{
			Verb: "run", Object: "Pod " + v1alpha1.SystemNamespace + "/canary-" + roleReach + "-* in the target",
			Body: map[string]any{"image": s.image.Name, "on": fmt.Sprintf("up to %d nodes", maxCanaries), "reach": s.targets},
		},
	}, nil
}

// spread chooses nodes by name, one zone after the other, workers first: firewalls may treat
// control planes differently.
func spread(nodes []corev1.Node, most int) []string {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !inventory.NodeReady(&n) })
	working := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return n.Spec.Unschedulable || governs(&n) })
	if len(working) > 0 {
		nodes = working
	}
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	place, inZone := map[string]int{}, map[string]int{}
	for i := range nodes {
		zone := nodes[i].Labels[corev1.LabelTopologyZone]
		place[nodes[i].Name] = inZone[zone]
		inZone[zone]++
	}
	slices.SortStableFunc(nodes, func(a, b corev1.Node) int { return place[a.Name] - place[b.Name] })
	var out []string
	for i := range nodes[:min(most, len(nodes))] {
		out = append(out, nodes[i].Name)
	}
	return out
}

func governs(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "node-role.kubernetes.io/control-plane" })
}
