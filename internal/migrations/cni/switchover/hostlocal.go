package switchover

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// A network that is called host-local has no program and no object: each node has a file, by which
// a plugin gives pods addresses of the Node's podCIDR, and someone else has routes between nodes.
// The API shows such addresses and no other network; nodes show the file (see detectSources).

// rangesLimit is how many ranges a Migration remembers.
const rangesLimit = 64

func rangesOfNode(n *corev1.Node) []netip.Prefix {
	texts := n.Spec.PodCIDRs
	if len(texts) == 0 {
		texts = []string{n.Spec.PodCIDR}
	}
	var out []netip.Prefix
	for _, text := range texts {
		if r, err := netip.ParsePrefix(text); err == nil {
			out = append(out, r.Masked())
		}
	}
	return out
}

// OfNodes are ranges and those of all Nodes, joined as far as that adds no address: one of a
// machine that is no node must not be taken for a pod's.
func OfNodes(nodes []corev1.Node, known []netip.Prefix) []netip.Prefix {
	all := slices.Clone(known)
	for i := range nodes {
		all = append(all, rangesOfNode(&nodes[i])...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, r := range all {
		if len(out) > 0 && Covers(out[len(out)-1], r) {
			continue
		}
		out = append(out, r)
		for len(out) > 1 {
			both, ok := joined(out[len(out)-2], out[len(out)-1])
			if !ok {
				break
			}
			out = append(out[:len(out)-2], both)
		}
	}
	return out
}

func joined(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().Is4() != b.Addr().Is4() {
		return netip.Prefix{}, false
	}
	both := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return both, both.Contains(b.Addr()) && a != b
}

func (s *Inventory) OwnRanges(node string) []netip.Prefix {
	i := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == node })
	if i < 0 {
		return nil
	}
	return rangesOfNode(&s.Nodes[i])
}

// checkHostLocal finds what shows in the API that pods have another network than host-local, once
// for each node.
func checkHostLocal(s *Inventory) []findings.Result {
	var out []findings.Result
	for _, text := range s.Unknown {
		out = append(out, findings.Failed("", "spec.cni.from is host-local, and %s", text))
	}
	for i := range s.Nodes {
		own := rangesOfNode(&s.Nodes[i])
		if p, a := s.foreigner(s.Nodes[i].Name, own); p != nil {
			name := p.Namespace + "/" + p.Name
			out = append(out, findings.Failed("Pod "+name, "pod %s on node %s has the address %s, which is not of its podCIDR %v",
				name, p.Spec.NodeName, a, own))
		}
	}
	return out
}

func (s *Inventory) foreigner(node string, own []netip.Prefix) (*corev1.Pod, netip.Addr) {
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Spec.NodeName != node || !Concerned(p) {
			continue
		}
		for _, a := range calico.PodAddresses(p) {
			if !Within(own, a) {
				return p, a
			}
		}
	}
	return nil, netip.Addr{}
}

// UnsupportedHostLocal says why host-local cannot be left for another network node by node;
// nothing, if it can.
func UnsupportedHostLocal(to v1alpha1.CNIName) string {
	switch to {
	case v1alpha1.Flannel:
		return "flannel gives pods addresses of their Node's podCIDR, as host-local does: both cannot be on one node"
	case v1alpha1.Calico, v1alpha1.Cilium:
		return ""
	}
	return fmt.Sprintf("from host-local to %s is an unsupported combination", to)
}

// checkOwnRanges finds nodes without a range of their pods.
func checkOwnRanges(s *Inventory) []findings.Result {
	var out []findings.Result
	for i := range s.Nodes {
		if n := &s.Nodes[i]; len(rangesOfNode(n)) == 0 {
			out = append(out, findings.Failed("Node "+n.Name, "node %s has podCIDR %q", n.Name, n.Spec.PodCIDR))
		}
	}
	if len(s.Ranges) > rangesLimit {
		out = append(out, findings.Failed("",
			"the ranges of nodes are %d that do not join, and at most %d can be distinguished", len(s.Ranges), rangesLimit))
	}
	return out
}

// SourceError says what keeps a node from leaving a network that is only files.
type SourceError struct {
	Node     string
	Problems []string
}

func (e *SourceError) Error() string {
	return fmt.Sprintf("node %s cannot be switched from host-local: %s", e.Node, (&nodecleanup.TracesReport{Problems: e.Problems}).String())
}

func (*SourceError) Advice() string {
	return "nothing has been installed, and no node has been switched; correct that on the node and run apply again"
}

// detectSources have each node say which file its pods get their network by, where no object of the
// cluster shows it.
func (p *Planner) detectSources() []engine.Group {
	if p.Inventory.From() != v1alpha1.HostLocal {
		return nil
	}
	return p.EachNode(func(node string) engine.Step {
		title := "Verify that node " + node + " has its network from host-local, and can leave it"
		s := p.OnNode(nodepod.VerbDetectSource, node, "origin", title, p.NetworkArgs(v1alpha1.HostLocal, node)...)
		s.Evaluate = func(r *nodecleanup.TracesReport) error {
			if len(r.Problems) == 0 {
				return nil
			}
			return &SourceError{Node: node, Problems: r.Problems}
		}
		return nodepod.ReadOnly{Step: s}
	})
}

func staysOfHostLocal() []string {
	return []string{
		"stays on every node: the plugins in /opt/cni/bin, which are never called without configuration",
		"stays where they are: routes to the pod ranges of nodes. Nothing tells whose they are; take them away where they come from, such as in the " +
			"cloud's controller (--configure-cloud-routes=false) or a route daemon, once finish is over",
	}
}
