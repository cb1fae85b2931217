package switchover

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// OnNode has replumb do something on a node; prefix begins the step's ID.
func (p *Planner) OnNode(verb, node, prefix, title string, args ...string) *nodepod.Step {
	return nodepod.New(p.Deps.Client(), p.Spec().Name, p.Image(), verb, node, prefix, title, args...)
}

// NetworkArgs are the arguments of sub-commands about what a network left on a node.
func (p *Planner) NetworkArgs(network v1alpha1.CNIName, node string) []string {
	ranges := p.Inventory.Ranges
	switch network {
	case p.Spec().To:
		ranges = p.Inventory.Target()
	case v1alpha1.HostLocal: // they tell its own files from those of others
		ranges = p.Inventory.OwnRanges(node)
	}
	return []string{string(network), "--root=" + taskpod.HostRoot, "--pods=" + JoinRanges(ranges)}
}

// JoinRanges are ranges as a flag takes them.
func JoinRanges(ranges []netip.Prefix) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, ",")
}

func (p *Planner) Cleaner(network v1alpha1.CNIName, prefix, node string) engine.Step {
	title := fmt.Sprintf("Remove what %s has left on node %s", network, node)
	s := p.OnNode(nodepod.VerbClean, node, prefix, title, p.NetworkArgs(network, node)...)
	s.Further = []engine.Change{
		{Verb: "clean", Object: "Node " + node, Body: map[string]any{"remove": Leftover(network).Describe()}},
	}
	return s
}

func (p *Planner) Residue(network v1alpha1.CNIName, prefix, node string) engine.Step {
	title := fmt.Sprintf("Verify that node %[2]s is clean of %[1]s", network, node)
	s := p.OnNode(nodepod.VerbResidue, node, prefix, title, p.NetworkArgs(network, node)...)
	s.Evaluate = func(r *nodecleanup.TracesReport) error {
		if r.Empty() {
			return nil
		}
		return fmt.Errorf("node %s still has of %s: %s", node, network, r)
	}
	return nodepod.ReadOnly{Step: s}
}
