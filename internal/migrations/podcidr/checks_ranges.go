package podcidr

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
)

func checkOverlaps(in Input) []findings.Result {
	var out []findings.Result
	against := func(object, what string, p netip.Prefix) {
		for _, to := range in.Survey.Spec.To {
			if to.Overlaps(p) {
				out = append(out, findings.Failed(object, "target %s overlaps %s %s", to, what, p))
			}
		}
	}
	for i := range in.Survey.Calico.Pools {
		if p := &in.Survey.Calico.Pools[i]; !slices.Contains(in.Survey.Spec.To, p.CIDR) {
			against("IPPool "+p.Name, "pool "+p.Name+" of", p.CIDR)
		}
	}
	for i := range in.ServiceCIDRs {
		c := &in.ServiceCIDRs[i]
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				against("ServiceCIDR "+c.Name, "the Service range", p)
			}
		}
	}
	for i := range in.Survey.Nodes {
		n := &in.Survey.Nodes[i]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				against("Node "+n.Name, "the address of node "+n.Name+",", netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	for _, p := range in.Survey.Spec.Networks {
		against("", "network", p)
	}
	return out
}

func checkReserved(in Input) []findings.Result {
	var out []findings.Result
	for _, text := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"} {
		for _, to := range in.Survey.Spec.To {
			if to.Overlaps(netip.MustParsePrefix(text)) {
				out = append(out, findings.Failed("", "target %s overlaps %s", to, text))
			}
		}
	}
	return out
}

// checkSelectors looks for nodes that no target's pool selects. The pool of a target is made like the old one.
func checkSelectors(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		node, selected := &in.Survey.Nodes[i], false
		for j := range in.Survey.Moves {
			m := &in.Survey.Moves[j]
			yes, err := m.selects(node)
			if err != nil {
				return []findings.Result{findings.NotKnown("IPPool "+m.Name(), "nodeSelector of the pool for %s: %v", m.To, err)}
			}
			selected = selected || yes
		}
		if !selected {
			out = append(out, findings.Failed("Node "+node.Name, "no target's pool selects node %s", node.Name))
		}
	}
	for i := range in.Survey.Moves {
		m := &in.Survey.Moves[i]
		hit := slices.ContainsFunc(in.Survey.Nodes, func(n corev1.Node) bool {
			yes, err := m.selects(&n)
			return err == nil && yes
		})
		if !hit {
			out = append(out, findings.Failed("IPPool "+m.Name(), "the pool for %s selects no node (nodeSelector %s)", m.To, m.selector()))
		}
	}
	return out
}

// checkCapacity counts blocks as nodes take them: one each to begin with, and as many as its pods need.
func checkCapacity(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Moves {
		m := &in.Survey.Moves[i]
		size := in.Survey.Spec.BlockSize
		if size == 0 && m.Old != nil {
			size = m.Old.BlockSize()
		}
		if size < m.To.Bits() {
			out = append(out, findings.Failed("", "target %s is smaller than one block of /%d", m.To, size))
			continue
		}
		perNode := map[string]int{}
		for _, pod := range in.Survey.PodsIn([]netip.Prefix{m.From, m.To}) {
			perNode[pod.Spec.NodeName]++
		}
		perBlock, blocks, needed := 1<<min(32-size, 20), 1<<min(size-m.To.Bits(), 20), 0
		for j := range in.Survey.Nodes {
			if selected, err := m.selects(&in.Survey.Nodes[j]); err != nil || !selected {
				continue // another check is about that
			}
			used := perNode[in.Survey.Nodes[j].Name] + 1 // the tunnel
			needed += max(1, (used+perBlock-1)/perBlock)
		}
		if needed > blocks {
			out = append(out, findings.Failed("", "target %s has %d blocks of /%d, and the nodes need %d", m.To, blocks, size, needed))
		}
	}
	return out
}
