package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// moveOfIngress is what the batch is called that comes before all nodes. No node can have the name.
const moveOfIngress = "the move of ingress"

// moveIngress moves pods of ingress off all old nodes first, and restores their Services' policies:
// Cluster costs a hop and hides clients' addresses. Phase restore does the other Services. It is a
// batch without hooks: its nodes are not empty after it.
func (p *Planner) moveIngress(d *drainer) []engine.Group {
	early := p.Inventory.Ingress().early()
	if len(early) == 0 {
		return nil
	}
	var groups []engine.Group
	if windows := p.Migration.Spec.Windows; len(windows) > 0 {
		groups = engine.AtOnce(1, moveOfIngress, window.NewStep("window/"+moveOfIngress, windows, p.Tools.Now))
	}
	o := hook.Occasion{Run: hook.Apply, Moment: v1alpha1.BeforeBatch, Phase: phaseDrain, Batch: 1}
	groups = append(groups, p.Hooks(o)...)
	goes := func(pod *corev1.Pod) bool { return p.Inventory.Ingress().isBehind(early, pod) }
	size := max(1, p.Inventory.Spec.parallel(len(p.Inventory.OldNodes())))
	for batch := range slices.Chunk(p.Inventory.Ingress().ahead(early), size) {
		var steps []engine.Step
		for i := range batch {
			steps = append(steps, d.drainAhead(batch[i].Name, goes))
		}
		groups = append(groups, engine.AtOnce(size, moveOfIngress, steps...)...)
	}
	groups = append(groups, ingress{d.live}.comesBack(early, p.Inventory.Ingress().unready(), p.leaveBalancers())...)
	groups = append(groups, p.Agents.Steady(moveOfIngress)...)
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.Hooks(o)...)
}

// leaveBalancers keeps load balancers off old nodes, which would drop traffic with policy Local.
func (p *Planner) leaveBalancers() []engine.Group {
	if !p.Inventory.Balanced {
		return nil
	}
	var steps []engine.Step
	for _, n := range p.Inventory.OldNodes() {
		if n.Reversible() {
			steps = append(steps, p.live().excludeAs("exclude/ahead/"+n.Name, n.Name))
		}
	}
	groups := engine.AtOnce(parallel, moveOfIngress, steps...)
	if settle := p.spec().Ingress.Settle.Duration; settle > 0 {
		groups = append(groups, engine.AtOnce(1, moveOfIngress, &migration.PauseStep{
			Name:   "settle/" + moveOfIngress,
			About:  fmt.Sprintf("Give load balancers %s to leave old nodes", settle),
			Length: settle, Now: p.Tools.Now,
		})...)
	}
	return groups
}

func (d *drainer) drainAhead(name string, goes func(*corev1.Pod) bool) engine.Step {
	l := d.leaving(name)
	l.Name, l.About = "ahead/"+name, "Move pods of ingress off node "+name
	l.Stays = func(pod *corev1.Pod) bool { return !leaves(pod) || !goes(pod) }
	return d.send(l)
}

func (i ingress) comesBack(services []types.NamespacedName, unready map[types.UID]bool, leave []engine.Group) []engine.Group {
	meant := func(key types.NamespacedName) bool { return slices.Contains(services, key) }
	back := []engine.Step{
		i.restoreStep("ingress-back/early", "Restore externalTrafficPolicy of Services that have moved", services, meant),
	}
	if targets := i.spec.Ingress.Targets; len(targets) > 0 {
		back = append(back, loadBalancersAnswer("early", targets))
	}
	return slices.Concat(engine.InOrder(i.servedByNew(meant, unready)), leave, engine.InOrder(back...))
}

// servedByNew waits until new nodes alone serve the Services that are meant.
func (i ingress) servedByNew(meant func(types.NamespacedName) bool, unready map[types.UID]bool) engine.Step {
	return &engine.Wait{
		Name:  "ingress/served",
		About: "Wait until new nodes serve what pods of ingress did on old ones",
		Limit: i.spec.Drain.Timeout.Duration,
		Again: true,
		For: func(ctx context.Context) (err error) {
			now := &Inventory{Spec: i.spec}
			if now.Recorded, err = i.record().nodes(ctx); err != nil {
				return err
			}
			for _, read := range []func(context.Context, *Inventory) error{loader(i).nodesAndPods, loader(i).services} {
				if err := read(ctx, now); err != nil {
					return err
				}
			}
			for n := range now.Services {
				if svc := &now.Services[n]; meant(client.ObjectKeyFromObject(svc)) {
					if err := now.Ingress().served(svc, unready); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}

type ingress struct{ live }

// policy is what AnnotationTrafficPolicy remembers of a Service.
type policy struct {
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy"`
	// HealthCheckNodePort goes with the policy Local, and is restored with it.
	HealthCheckNodePort int32 `json:"healthCheckNodePort,omitempty"`
}

func (i ingress) trafficPolicy(key types.NamespacedName, d engine.Direction) *engine.Write {
	s := &engine.Write{
		Name: "ingress/" + key.String(), About: fmt.Sprintf("Switch externalTrafficPolicy of Service %s to Cluster", key),
		Holds: func(ctx context.Context) error {
			svc, err := i.service(ctx, key)
			if err == nil && svc != nil && local(svc) {
				return engine.NotYet("service %s has externalTrafficPolicy Local", key)
			}
			return err
		},
		Write:   func(ctx context.Context) error { return i.patchService(ctx, key, switchPolicy) },
		Changes: policyChange(key, corev1.ServiceExternalTrafficPolicyCluster, "as it was"),
	}
	if d == engine.Backward {
		s.Name, s.About = "ingress-back/"+key.String(), fmt.Sprintf("Restore externalTrafficPolicy of Service %s", key)
		s.Holds = func(ctx context.Context) error {
			svc, err := i.service(ctx, key)
			if err == nil && svc != nil && svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" {
				return notRestored(key)
			}
			return err
		}
		s.Write = func(ctx context.Context) error { return i.patchService(ctx, key, restorePolicy) }
		s.Changes = policyChange(key, "as it was", nil)
	}
	return s
}

func notRestored(key types.NamespacedName) error {
	return engine.NotYet("externalTrafficPolicy of service %s has not been restored", key)
}

func policyChange(key types.NamespacedName, to corev1.ServiceExternalTrafficPolicy, recorded any) func() ([]engine.Change, error) {
	return func() ([]engine.Change, error) {
		return []engine.Change{{Verb: "patch", Object: "Service " + key.String(), Body: map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationTrafficPolicy: recorded}},
			"spec":     map[string]any{"externalTrafficPolicy": to},
		}}}, nil
	}
}

func (i ingress) service(ctx context.Context, key types.NamespacedName) (*corev1.Service, error) {
	svc := &corev1.Service{}
	err := i.Cluster.Get(ctx, key, svc)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", key, err)
	}
	return svc, nil
}

func (i ingress) patchService(ctx context.Context, key types.NamespacedName, change func(*corev1.Service) error) error {
	svc, err := i.service(ctx, key)
	if err != nil || svc == nil {
		return err
	}
	was := svc.DeepCopy()
	if err := change(svc); err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := i.Cluster.Patch(ctx, svc, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	return nil
}

func switchPolicy(svc *corev1.Service) error {
	had, err := json.Marshal(policy{svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort})
	if err != nil {
		return err
	}
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[v1alpha1.AnnotationTrafficPolicy] = string(had)
	// The health-check port has to go with the policy (k8s.io/kubernetes pkg/apis/core/validation,
	// ValidateService).
	svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	return nil
}

func restorePolicy(svc *corev1.Service) error {
	var had policy
	if err := json.Unmarshal([]byte(svc.Annotations[v1alpha1.AnnotationTrafficPolicy]), &had); err != nil {
		return fmt.Errorf("service %s/%s: annotation %s: %w", svc.Namespace, svc.Name, v1alpha1.AnnotationTrafficPolicy, err)
	}
	delete(svc.Annotations, v1alpha1.AnnotationTrafficPolicy)
	svc.Spec.ExternalTrafficPolicy = had.ExternalTrafficPolicy
	if had.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		svc.Spec.HealthCheckNodePort = had.HealthCheckNodePort
	}
	return nil
}

func (i ingress) switchPolicies(all []types.NamespacedName) []engine.Group {
	if len(all) == 0 {
		return nil
	}
	var steps, balancers []engine.Step
	for _, key := range all {
		steps = append(steps, i.trafficPolicy(key, engine.Forward))
	}
	if settle := i.spec.Ingress.Settle.Duration; settle > 0 {
		balancers = append(balancers, &migration.PauseStep{
			Name:   "settle/ingress",
			About:  fmt.Sprintf("Give load balancers %s to see which nodes answer", settle),
			Length: settle, Now: i.Now,
		})
	}
	if targets := i.spec.Ingress.Targets; len(targets) > 0 {
		balancers = append(balancers, loadBalancersAnswer("ingress", targets))
	}
	return append(engine.AtOnce(parallel, "", steps...), engine.InOrder(balancers...)...)
}

// restorePolicies restores all recorded policies. known are those expected at the time of the plan.
func (i ingress) restorePolicies(known []types.NamespacedName) []engine.Group {
	all := func(types.NamespacedName) bool { return true }
	steps := []engine.Step{i.restoreStep("ingress-back", "Restore externalTrafficPolicy of Services", known, all)}
	if targets := i.spec.Ingress.Targets; len(targets) > 0 {
		steps = append(steps, loadBalancersAnswer("restore", targets))
	}
	return engine.InOrder(steps...)
}

// restoreStep restores those of the Services with a recorded policy that are meant.
func (i ingress) restoreStep(id, title string, known []types.NamespacedName, meant func(types.NamespacedName) bool) engine.Step {
	switched := func(ctx context.Context) ([]types.NamespacedName, error) {
		all, err := i.switched(ctx)
		return slices.DeleteFunc(all, func(key types.NamespacedName) bool { return !meant(key) }), err
	}
	return &engine.Observed[[]types.NamespacedName]{
		Name: id, About: title,
		Look: func(ctx context.Context) (engine.State, []types.NamespacedName, error) {
			all, err := switched(ctx)
			switch {
			case err != nil:
				return engine.Unknown, nil, err
			case len(all) == 0:
				return engine.Done, nil, nil
			}
			return engine.Pending, all, nil
		},
		Write: func(ctx context.Context, all []types.NamespacedName) error {
			for _, key := range all {
				if err := i.trafficPolicy(key, engine.Backward).Do(ctx); err != nil {
					return err
				}
			}
			return nil
		},
		Proof: func(ctx context.Context) error {
			left, err := switched(ctx)
			if err == nil && len(left) > 0 {
				return notRestored(left[0])
			}
			return err
		},
		Changes: func() (all []engine.Change, err error) {
			for _, key := range known {
				changes, err := i.trafficPolicy(key, engine.Backward).Preview()
				if err != nil {
					return nil, err
				}
				all = append(all, changes...)
			}
			return all, nil
		},
	}
}

func (i ingress) switched(ctx context.Context) ([]types.NamespacedName, error) {
	now := &Inventory{}
	if err := loader(i).services(ctx, now); err != nil {
		return nil, err
	}
	return now.Ingress().switched(), nil
}

// dialLimit bounds one attempt to reach a load balancer.
const dialLimit = 5 * time.Second

func loadBalancersAnswer(after string, targets []string) engine.Step {
	return &engine.Wait{
		Name: "answer/" + after, About: "Verify that load balancers answer", Again: true,
		For: func(ctx context.Context) error {
			for _, target := range targets {
				dial, cancel := context.WithTimeout(ctx, dialLimit)
				conn, err := new(net.Dialer).DialContext(dial, "tcp", target)
				cancel()
				if err != nil {
					return engine.NotYet("load balancer %s does not answer: %w", target, err)
				}
				_ = conn.Close()
			}
			return nil
		},
	}
}
