package pools

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
)

func checkDatastore(in Input) []findings.Result {
	if in.Pools.Calico.Ready {
		return nil
	}
	return []findings.Result{findings.Failed("ClusterInformation default", "Calico's datastore is locked (datastoreReady: false)")}
}

func checkOperator(in Input) []findings.Result {
	if len(in.Pools.Installations) == 0 {
		return findings.Skip("no Tigera operator is seen in the cluster")
	}
	var out []findings.Result
	for _, i := range in.Pools.Installations {
		object := "Installation " + i.Name
		for n := range in.Pools.Moves {
			m := &in.Pools.Moves[n]
			old, has := i.pool(m.From)
			if !has {
				continue
			}
			if _, target := i.pool(m.To); !target {
				out = append(out, findings.Failed(object, "installation %s lists pool %s and not target %s", i.Name, m.From, m.To))
			}
			if !old.DisableNewAllocations {
				out = append(out, findings.Failed(object, "installation %s lists pool %s without disableNewAllocations", i.Name, m.From))
			}
		}
	}
	return out
}

func checkSelectors(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		node, selected := &in.Inventory.Nodes[i], false
		for j := range in.Pools.Moves {
			m := &in.Pools.Moves[j]
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
	for i := range in.Pools.Moves {
		m := &in.Pools.Moves[i]
		hit := slices.ContainsFunc(in.Inventory.Nodes, func(n corev1.Node) bool {
			yes, err := m.selects(&n)
			return err == nil && yes
		})
		if !hit {
			out = append(out, findings.Failed("IPPool "+m.Name(), "the pool for %s selects no node (nodeSelector %s)", m.To, m.selector()))
		}
	}
	return out
}

// checkCapacity counts blocks: one for each node, and as many as its pods need.
func checkCapacity(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Pools.Moves {
		m := &in.Pools.Moves[i]
		size := in.Inventory.Spec.BlockSize
		if size == 0 && m.Old != nil {
			size = m.Old.BlockSize()
		}
		if size < m.To.Bits() {
			out = append(out, findings.Failed("", "target %s is smaller than one block of /%d", m.To, size))
			continue
		}
		perNode := map[string]int{}
		for _, pod := range in.Inventory.PodsIn([]netip.Prefix{m.From, m.To}) {
			perNode[pod.Spec.NodeName]++
		}
		perBlock, blocks, needed := 1<<min(32-size, 20), 1<<min(size-m.To.Bits(), 20), 0
		for j := range in.Inventory.Nodes {
			if selected, err := m.selects(&in.Inventory.Nodes[j]); err != nil || !selected {
				continue // another check is about that
			}
			used := perNode[in.Inventory.Nodes[j].Name] + 1 // the tunnel
			needed += max(1, (used+perBlock-1)/perBlock)
		}
		if needed > blocks {
			out = append(out, findings.Failed("", "target %s has %d blocks of /%d, and the nodes need %d", m.To, blocks, size, needed))
		}
	}
	return out
}
