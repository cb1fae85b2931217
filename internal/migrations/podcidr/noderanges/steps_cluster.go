package noderanges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// latecomers gives ranges to nodes that joined the cluster while controller managers give none.
func (p *Planner) latecomers(d engine.Direction) engine.Step {
	c, s := p.Tools.Cluster, p.Inventory.Spec
	read := func(ctx context.Context) ([]NodeRange, error) {
		ranges, err := rangesNow(ctx, c, s)
		if err != nil {
			return nil, err
		}
		return ranges, allThere(ranges, d)
	}
	return &engine.Observed[[]NodeRange]{
		Name: "latecomers", About: "Assign ranges to nodes that joined meanwhile",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, ranges []NodeRange) error {
			for i := range ranges {
				if r := &ranges[i]; len(r.Has) == 0 {
					if err := saved(c, s.Name).Recreate(ctx, r.Node.Name, r.at(d)); err != nil {
						return err
					}
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			const late = "Node * that has no range yet"
			return []engine.Change{{Verb: "delete", Object: late}, {Verb: "create", Object: late}}, nil
		},
	}
}

func rangesNow(ctx context.Context, c *cluster.Cluster, s podmove.Spec) ([]NodeRange, error) {
	now, err := podmove.Occupants(ctx, c, s)
	if err != nil {
		return nil, err
	}
	kept, err := saved(c, s.Name).List(ctx)
	if err != nil {
		return nil, err
	}
	ranges, _, err := resolve(now.Nodes, s, Sources{Saved: kept})
	return ranges, err
}

// allThere returns nil if every node has its ranges. This run does not move late nodes.
func allThere(ranges []NodeRange, d engine.Direction) error {
	for i := range ranges {
		switch r := &ranges[i]; {
		case len(r.Has) == 0:
			return engine.NotYet("node %s has no range", r.Node.Name)
		case !r.there(d):
			return fmt.Errorf("node %s has the range %s: it joined meanwhile; run this again to move it, too",
				r.Node.Name, strings.Join(r.Has, ","))
		}
	}
	return nil
}

// noted reports whether a Node has any of the annotations.
func noted(n *corev1.Node, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { return n.Annotations[key] != "" })
}

// notes are the annotations that replumb leaves on Nodes until the migration ends.
func notes() []string {
	return []string{v1alpha1.AnnotationPodCIDRs, v1alpha1.AnnotationCiliumAgent, v1alpha1.AnnotationReturning}
}

// notedNodes are those with notes of replumb. It fails while there are any, or a trial Node.
func notedNodes(ctx context.Context, c *cluster.Cluster, trial nodeipam.Trial) ([]corev1.Node, error) {
	now, err := podmove.Occupants(ctx, c, podmove.Spec{})
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(now.Nodes, func(n corev1.Node) bool { return !cordon.Closed(&n) && !noted(&n, notes()...) })
	left, err := trial.Outcome(ctx)
	switch {
	case err != nil:
		return nil, err
	case left != nil:
		return all, engine.NotYet("the canary node is still there")
	case len(all) > 0:
		return all, engine.NotYet("node %s has notes", all[0].Name)
	}
	return nil, nil
}

// clearNotes takes replumb's notes off all Nodes, and removes the Node of a trial that was cut off.
func clearNotes(tools migration.Deps, name string) engine.Step {
	trial := nodeipam.Trial{Client: tools.Client(), Migration: name}
	read := func(ctx context.Context) ([]corev1.Node, error) { return notedNodes(ctx, tools.Cluster, trial) }
	return &engine.Observed[[]corev1.Node]{
		Name: "tidy/nodes", About: "Remove annotations from Nodes", As: engine.RoleOwn,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, all []corev1.Node) error {
			if err := trial.End(ctx); err != nil {
				return err
			}
			for i := range all {
				err := cordon.Patch(ctx, tools.Cluster, &all[i], func(n *corev1.Node) {
					cordon.Clear(n)
					for _, key := range notes() {
						delete(n.Annotations, key)
					}
				})
				if err != nil {
					return err
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			return append(trial.Preview()[1:], engine.Change{
				Verb: "patch", Object: "Node * with notes of replumb", Body: map[string]any{
					"metadata": map[string]any{"annotations": map[string]any{
						v1alpha1.AnnotationPodCIDRs: nil, v1alpha1.AnnotationCordoned: nil,
					}},
				},
			}), nil
		},
	}
}
