package inplace

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// JoinedError says that nodes have joined while others were switched, and give their pods the old
// network.
type JoinedError struct {
	Nodes []string
	To    v1alpha1.CNIName
}

func (e *JoinedError) Error() string {
	return fmt.Sprintf("%s joined and not switched to %s: %s",
		english.Plural(len(e.Nodes), "node has", "nodes have"), e.To, strings.Join(e.Nodes, ", "))
}

func (*JoinedError) Advice() string { return "run apply again: it switches them" }

// everyNode fails with a *JoinedError if a node is there that was not when nodes were planned, or
// that another run has left.
func (p *Planner) everyNode() engine.Step {
	return &engine.Wait{Name: "nodes", About: "Verify that every node is switched", Again: true, For: func(ctx context.Context) error {
		now, err := p.Deps.Occupants(ctx, p.Spec())
		if err != nil {
			return err
		}
		if names := (&Strategy{Inventory: now}).notActivated(); len(names) > 0 {
			return &JoinedError{Nodes: names, To: p.Spec().To}
		}
		return nil
	}}
}

func (p *Planner) activate(node string, d engine.Direction) engine.Step {
	if d == engine.Backward {
		return p.OnNode(nodepod.VerbDeactivate, node, "switch",
			fmt.Sprintf("Have node %s give new pods the network of %s again", node, p.Inventory.From()), "--root="+taskpod.HostRoot)
	}
	return p.OnNode(nodepod.VerbActivate, node, "switch",
		fmt.Sprintf("Have node %s give new pods the network of %s", node, p.Spec().To), string(p.Spec().To), "--root="+taskpod.HostRoot)
}

func (p *Planner) adopt(node string) engine.Step {
	return p.OnNode(nodepod.VerbAdopt, node, "adopt",
		fmt.Sprintf("Have node %s go by the configuration that %s writes", node, p.Spec().To), string(p.Spec().To), "--root="+taskpod.HostRoot)
}

// annotate writes on a Node which network its new pods have. On the way back that is nothing, as it
// was.
func (p *Planner) annotate(name string, d engine.Direction) engine.Step {
	m := cordon.NodeMark{
		ID: "label/" + name, About: "Record which network new pods on node " + name + " have", Node: name,
		Annotation: true, Key: v1alpha1.AnnotationPodNetwork, Value: string(p.Spec().To),
	}
	if d == engine.Backward {
		m.ID, m.Value = "unlabel/"+name, ""
	}
	return m.Step(p.Deps.Cluster)
}

// markBeside lets the programs of the new network start on a node. On the way back, and at the end,
// the mark goes.
func (p *Planner) markBeside(name string, d engine.Direction) engine.Step {
	m := cordon.NodeMark{
		ID: "beside/" + name, About: fmt.Sprintf("Let %s start on node %s", p.Spec().To, name), Node: name,
		Key: v1alpha1.LabelBeside, Value: string(p.Spec().To),
	}
	if d == engine.Backward {
		m.ID, m.About, m.Value = "unmark/"+name, "Remove the mark of the new network from node "+name, ""
	}
	return m.Step(p.Deps.Cluster)
}

// ready waits until a switched node is ready again, before anything is tried there and before the
// next node takes no more pods.
func (p *Planner) ready(name string) engine.Step {
	return &engine.Wait{
		Name: "ready/" + name, About: "Wait until node " + name + " is ready with its network", Again: true,
		Limit: p.Spec().InPlace.Timeout.Duration,
		For: func(ctx context.Context) error {
			n, err := cordon.Read(ctx, p.Deps.Cluster, name)
			if err != nil || n == nil { // a node that is gone keeps no one waiting
				return err
			}
			if why := switchover.Unfit(n); why != "" {
				return engine.NotYet("node %s: %s", name, why)
			}
			return nil
		},
	}
}

// recordCounts writes on the Migration how many pods have the new network by now.
func (p *Planner) recordCounts(after string) engine.Step {
	deps, spec, ranges, m := p.Deps, p.Spec(), p.Inventory.Ranges, p.Inventory.Manifests
	return &engine.Observed[v1alpha1.Counts]{
		Name: "note/" + after, About: "Record that " + after + " is switched", As: engine.RoleOwn,
		Look: func(ctx context.Context) (engine.State, v1alpha1.Counts, error) { // an earlier note says nothing of now
			now, err := deps.Occupants(ctx, spec)
			if err != nil {
				return engine.Unknown, v1alpha1.Counts{}, err
			}
			then := &switchover.Inventory{Spec: spec, Pods: now.Pods, Ranges: ranges, Manifests: m}
			return engine.Pending, switchover.CountsOf(&Strategy{Inventory: then}), nil
		},
		Write: func(ctx context.Context, counts v1alpha1.Counts) error {
			return migration.UpdateStatus(ctx, deps.Cluster, spec.Name, func(st *v1alpha1.MigrationStatus) { st.Counts = counts })
		},
		Proof:   func(context.Context) error { return nil },
		Changes: migration.StatusChange(spec.Name, map[string]any{"counts": "of pods with the old and with the new network"}),
	}
}
