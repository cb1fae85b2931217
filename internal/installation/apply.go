package installation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
)

// DefaultWait is how long the operator may take to come up by default.
const DefaultWait = 5 * time.Minute

// Installer puts an installation into a cluster, or brings the one that is there up to date.
type Installer struct {
	Cluster *cluster.Cluster
	Options Options
	Wait    time.Duration
}

// Run makes what is missing, repairs what differs, and waits until the operator runs. It writes
// nothing and fails with a *cluster.NewerError if a definition is of a newer build.
func (i *Installer) Run(ctx context.Context, r *engine.Runner) error {
	for _, d := range definitions() {
		if _, err := i.Cluster.Defined(ctx, d); err != nil {
			return err
		}
	}
	plan, err := i.plan()
	if err != nil {
		return err
	}
	return r.Run(ctx, plan)
}

func (i *Installer) plan() (*engine.Plan, error) {
	parts, err := sections(i.Options)
	if err != nil {
		return nil, err
	}
	plan := &engine.Plan{Name: "install"}
	for _, part := range parts {
		steps := []engine.Step{i.apply(part)}
		if part.name == "definitions" {
			steps = i.define()
		}
		if part.name == "operator" {
			steps = append(steps, i.alive())
		}
		plan.Phases = append(plan.Phases, engine.Phase{
			Name: part.name, Title: part.title, Groups: engine.InOrder(steps...), Own: true,
		})
	}
	return plan, nil
}

// define never replaces a definition by an older one, whichever build is quicker.
func (i *Installer) define() []engine.Step {
	var all []engine.Step
	for _, d := range definitions() {
		all = append(all, &migration.CRDStep{Cluster: i.Cluster, Kind: d, Name: "definitions/" + strings.ToLower(string(d)), Upgrade: true})
	}
	return all
}

func (i *Installer) apply(part section) engine.Step {
	return &engine.Write{
		Name: part.name + "/objects", About: part.title, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			for _, want := range part.objects {
				if err := i.holds(ctx, want); err != nil {
					return err
				}
			}
			return nil
		},
		Write: func(ctx context.Context) error {
			for _, want := range part.objects {
				if err := workload.Write(ctx, i.Cluster, want); err != nil {
					return err
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) { return workload.Created(part.objects), nil },
	}
}

// holds returns nil if an object is there and as it should be.
func (i *Installer) holds(ctx context.Context, want *unstructured.Unstructured) error {
	name, have := workload.NameOf(want), &unstructured.Unstructured{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	there, err := workload.Get(ctx, i.Cluster, name, client.ObjectKeyFromObject(want), have)
	switch {
	case err != nil:
		return err
	case !there:
		return engine.NotYet("%s does not exist", name)
	case have.GetDeletionTimestamp() != nil:
		return engine.NotYet("%s is being removed", name)
	}
	same, err := workload.Same(ctx, i.Cluster, workload.Pair{Want: want, Have: have})
	if err == nil && !same {
		return engine.NotYet("%s differs", name)
	}
	return err
}

func (i *Installer) alive() engine.Step {
	return &engine.Wait{Name: "operator/alive", About: "Verify that the operator runs", Limit: cmp.Or(i.Wait, DefaultWait), For: i.up}
}

// DownError says that the operator does not run.
type DownError struct {
	Cause  workload.Cause
	Reason string
}

func (e *DownError) Error() string {
	return fmt.Sprintf("deployment %s/%s is not available: %s", v1alpha1.SystemNamespace, Operator, e.Reason)
}

func (*DownError) ExitCode() int { return fault.ExitError }

func (e *DownError) Advice() string {
	const again = "; then run the same command again"
	in := " -n " + v1alpha1.SystemNamespace
	return workload.Advice([]workload.Hint{
		{
			Cause: workload.NoImage,
			Text: "push the image to where nodes pull from and name it with --image, and pull secrets for it with " +
				"--pull-secret" + again,
		},
		{
			Cause: workload.Unscheduled,
			Text: "make room on a node: a replica asks for 100m of CPU time and 128Mi, and tolerates the taints of " +
				"control planes" + again,
		},
		{Cause: workload.Ends, Text: "kubectl logs" + in + " deployment/" + Operator + " --previous says more"},
		{
			Cause: workload.NoPod,
			Text:  "kubectl describe replicaset" + in + " shows who refuses pods: let them in, by label or quota" + again,
		},
	}, "kubectl describe deployment"+in+" "+Operator+" says more", func(c workload.Cause) bool { return c == e.Cause })
}

func (i *Installer) up(ctx context.Context) error {
	d, key := &appsv1.Deployment{}, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Operator}
	there, err := workload.Get(ctx, i.Cluster, "deployment "+key.String(), key, d)
	if err != nil {
		return err
	}
	if !there {
		return engine.NotYet("deployment %s does not exist", key)
	}
	complete, why := readiness.Workload(d)
	if complete {
		return nil
	}
	down, err := i.down(ctx, why)
	if err != nil {
		return err
	}
	return engine.NotYet("%w", down)
}

// down says why the operator does not run, by the first of its pods that says something.
func (i *Installer) down(ctx context.Context, why string) (*DownError, error) {
	pods, err := podsOf(ctx, i.Cluster)
	if err != nil {
		return nil, err
	}
	news, err := workload.News(ctx, i.Cluster, workload.Named(Operator+"-"))
	if err != nil {
		return nil, err
	}
	for n := range pods {
		if cause, reason := workload.Waiting(&pods[n], news[pods[n].Name]); cause != "" {
			return &DownError{Cause: cause, Reason: workload.And(why, reason)}, nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(news)) {
		if len(pods) == 0 && strings.HasPrefix(name, Operator+"-") {
			return &DownError{Cause: workload.NoPod, Reason: workload.And(why, news[name])}, nil
		}
	}
	return &DownError{Cause: workload.Starting, Reason: why}, nil
}

func podsOf(ctx context.Context, c client.Reader) ([]corev1.Pod, error) {
	return workload.Pods(ctx, c, "deployment "+Operator,
		client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels(labels()))
}
