package switchover

import (
	"context"
	"slices"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Request is what the action that replaces nodes gets. docs/hooks.md shows one like it.
type Request struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Migration  string          `json:"migration"`
	Run        hook.RunPurpose `json:"run"`
	Action     string          `json:"action"`
	// Nodes that have to go, by name; as many have to come.
	Nodes []string `json:"nodes"`
}

// leavers are the names of nodes that have to be replaced, by status.cni.
type leavers func(v1alpha1.CNIStatus) []string

// ReplaceNodes waits for the operator to replace every node, or calls the action that does.
func ReplaceNodes(deps Deps, spec Spec) engine.Step {
	return replace(deps, spec, "replace", "Replace every node", func(st v1alpha1.CNIStatus) []string { return st.Nodes })
}

// replaceNodesAgain replaces the nodes that there were when that began.
func replaceNodesAgain(deps Deps, spec Spec) engine.Step {
	return replace(deps, spec, "again/replace", "Replace every node once more", func(st v1alpha1.CNIStatus) []string {
		if st.Again == nil {
			return nil
		}
		return st.Again.Nodes
	})
}

func replace(deps Deps, spec Spec, id, about string, of leavers) engine.Step {
	replaced := lease.Outlasting(func(ctx context.Context) error { return replaced(ctx, deps, spec.Name, of) })
	wait := engine.Wait{Name: id, About: about, Limit: spec.GateWait, For: replaced}
	action := spec.Nodes.Replace
	if action == nil {
		return &engine.Gate{Wait: wait, Instructions: func() string {
			return "Join as many new nodes as there are, and remove the old ones. replumb goes on by itself."
		}}
	}
	once := callout.Once{Action: *action} // one that failed to bring the nodes is not repeated within a run
	return engine.Interruptible{Write: &engine.Write{
		Name: wait.Name, About: wait.About, As: engine.RoleCall, Limit: spec.GateWait + action.Timeout.Duration, Holds: replaced,
		Write: func(ctx context.Context) error { return callReplace(ctx, deps, spec.Name, &once, of) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "call", Object: callout.Name(*action)}}, nil
		},
	}}
}

func callReplace(ctx context.Context, deps Deps, name string, action *callout.Once, of leavers) error {
	st, err := deps.Status(ctx, name)
	if err != nil {
		return err
	}
	r := Request{
		APIVersion: v1alpha1.GroupVersion.String(),
		Kind:       "NodesRequest",
		Migration:  name,
		Run:        hook.Apply,
		Action:     "replace",
		Nodes:      of(st),
	}
	err = action.Call(ctx, &r, nil)
	if callout.Called(err) {
		return &hook.FailedError{Hook: r.Action, Cause: err}
	}
	return err
}

// replaced returns nil once none of the nodes is left, and as many others are ready.
func replaced(ctx context.Context, deps Deps, name string, of leavers) error {
	st, err := deps.Status(ctx, name)
	if err != nil {
		return err
	}
	nodes, err := cluster.List[corev1.Node](ctx, deps.Cluster, &corev1.NodeList{})
	if err != nil {
		return err
	}
	fresh, old := 0, of(st)
	for i := range nodes {
		if slices.Contains(old, nodes[i].Name) {
			return engine.NotYet("node %s is still there", nodes[i].Name)
		}
		if inventory.NodeReady(&nodes[i]) {
			fresh++
		}
	}
	if fresh < len(old) {
		return engine.NotYet("%d of %s ready", fresh, english.Plural(len(old), "new node is", "new nodes are"))
	}
	return nil
}
