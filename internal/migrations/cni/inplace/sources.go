package inplace

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// sourceKeeper is a DaemonSet that keeps the source of packets between pods of both networks: each
// network would give those that leave it the address of a node, and NetworkPolicies would not see
// pods any more.
type sourceKeeper struct {
	deps      switchover.Deps
	migration string
	image     pull.Image
	// ranges are those of both networks.
	ranges string
}

func (p *Planner) sourceKeeper() sourceKeeper {
	ranges := switchover.JoinRanges(slices.Concat(p.Inventory.Ranges, p.Inventory.Target()))
	return sourceKeeper{deps: p.Deps, migration: p.Spec().Name, image: p.Image(), ranges: ranges}
}

// preserveSources has packets keep their source between both networks, where those can do with
// that.
func (p *Planner) preserveSources() []engine.Group {
	if p.inPlace.masquerades() {
		return nil
	}
	return engine.InOrder(p.sourceKeeper().start())
}

// forgetSources removes the DaemonSet, and what it has set on each node.
func (p *Planner) forgetSources() []engine.Group {
	if p.inPlace.masquerades() {
		return nil
	}
	return append(engine.InOrder(p.sourceKeeper().end()), p.EachNode(func(node string) engine.Step {
		return p.OnNode(nodepod.VerbForgetSource, node, "uncross", "Have node "+node+" translate addresses as before")
	})...)
}

// sourceKeeperTime is how long its image may take to come to every node.
const sourceKeeperTime = 10 * time.Minute

func (c sourceKeeper) key() client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: c.migration + "-crossing"}
}

func (c sourceKeeper) labels() map[string]string {
	return map[string]string{v1alpha1.LabelMigration: c.migration, taskpod.Label: nodepod.VerbPreserveSource}
}

func (c sourceKeeper) set() *appsv1.DaemonSet {
	ranges := "--ranges=" + c.ranges
	pod := taskpod.Spec(c.image, corev1.Container{
		Name: "replumb", Image: c.image.Name, Args: []string{"node", nodepod.VerbPreserveSource, ranges}, SecurityContext: taskpod.RootWith("NET_ADMIN"),
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/replumb", "node", "crossed", ranges}}},
			PeriodSeconds: 5, TimeoutSeconds: 5, //nolint:mnd // seconds
		},
	})
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.key().Namespace, Name: c.key().Name, Labels: c.labels()},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: c.labels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: c.labels()}, Spec: pod},
		},
	}
}

func (c sourceKeeper) read(ctx context.Context) (*appsv1.DaemonSet, error) {
	return daemonset.Find(ctx, c.deps.Cluster, c.key())
}

// start brings the DaemonSet to every node, and waits until it is ready there.
func (c sourceKeeper) start() engine.Step {
	return &engine.Write{
		Name: "crossing", About: "Keep pods' own addresses between both networks, on every node", Limit: sourceKeeperTime,
		Holds: func(ctx context.Context) error {
			have, err := c.read(ctx)
			switch {
			case err != nil:
				return err
			case have == nil:
				return engine.NotYet("DaemonSet %s does not exist", c.key())
			case !c.current(have):
				return engine.NotYet("DaemonSet %s is of other ranges", c.key())
			}
			return switchover.SetReady(ctx, c.deps, have)
		},
		Write: func(ctx context.Context) error {
			if err := c.removeOutdated(ctx); err != nil {
				return err
			}
			err := c.deps.Cluster.Create(ctx, c.set(), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("daemonset %s: %w", c.key(), err)
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "create", Object: "DaemonSet " + c.key().String(), Body: c.set()}}, nil
		},
	}
}

func (c sourceKeeper) current(have *appsv1.DaemonSet) bool {
	containers := have.Spec.Template.Spec.Containers
	return len(containers) == 1 && slices.Equal(containers[0].Args, c.set().Spec.Template.Spec.Containers[0].Args)
}

// removeOutdated deletes a DaemonSet of other ranges, such as of before a node joined. Nodes go by
// it until the next one changes them.
func (c sourceKeeper) removeOutdated(ctx context.Context) error {
	have, err := c.read(ctx)
	if err != nil || have == nil || c.current(have) {
		return err
	}
	err = c.deps.Cluster.Delete(ctx, have,
		client.Preconditions{UID: &have.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("daemonset %s: %w", c.key(), err)
	}
	return nil
}

func (c sourceKeeper) end() engine.Step {
	return &engine.Write{
		Name: "uncross", About: "Remove what kept pods' own addresses between both networks", Limit: sourceKeeperTime,
		Holds: func(ctx context.Context) error {
			err := c.deps.Cluster.Get(ctx, c.key(), &appsv1.DaemonSet{})
			if err == nil {
				return engine.NotYet("DaemonSet %s is still there", c.key())
			}
			return client.IgnoreNotFound(err)
		},
		Write: func(ctx context.Context) error {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: c.key().Namespace, Name: c.key().Name}}
			err := c.deps.Cluster.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground))
			return client.IgnoreNotFound(err)
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "DaemonSet " + c.key().String()}}, nil
		},
	}
}
