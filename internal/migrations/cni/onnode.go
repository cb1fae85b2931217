package cni

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// onNode has replumb do something on a node; prefix begins the step's ID.
func (p *Planner) onNode(verb, node, prefix, title string, args ...string) *nodeStep {
	return newNodeStep(p.Deps.Client(), p.spec().Name, p.image(), verb, node, prefix, title, args...)
}

// networkArgs are the arguments of sub-commands about what a network left on a node.
func (p *Planner) networkArgs(network v1alpha1.CNIName, node string) []string {
	ranges := p.Inventory.Ranges
	switch network {
	case p.spec().To:
		ranges = p.Inventory.target()
	case v1alpha1.HostLocal: // they tell its own files from those of others
		ranges = p.Inventory.ownRanges(node)
	}
	return []string{string(network), "--root=" + hostRoot, "--pods=" + joinRanges(ranges)}
}

func joinRanges(ranges []netip.Prefix) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, ",")
}

// cleaner removes what a network has left on a node.
func (p *Planner) cleaner(network v1alpha1.CNIName, prefix, node string) engine.Step {
	title := fmt.Sprintf("Remove what %s has left on node %s", network, node)
	s := p.onNode(verbClean, node, prefix, title, p.networkArgs(network, node)...)
	s.further = []engine.Change{
		{Verb: "clean", Object: "Node " + node, Body: map[string]any{"remove": leftover(network).Describe()}},
	}
	return s
}

// residue proves that a node is clean of a network.
func (p *Planner) residue(network v1alpha1.CNIName, prefix, node string) engine.Step {
	title := fmt.Sprintf("Verify that node %[2]s is clean of %[1]s", network, node)
	s := p.onNode(verbResidue, node, prefix, title, p.networkArgs(network, node)...)
	s.evaluate = func(r *nodecleanup.Report) error {
		if r.Empty() {
			return nil
		}
		return fmt.Errorf("node %s still has of %s: %s", node, network, r)
	}
	return lookStep{s}
}
