package noderanges

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/spec"
)

// resolve pairs ranges of nodes with their targets, and returns the ranges that are emptied.
func resolve(nodes []corev1.Node, s podmove.Spec, from Sources) ([]NodeRange, []netip.Prefix, error) {
	if len(s.To) != 1 {
		return nil, nil, &spec.Error{
			Field:   podmove.Field + ".to",
			Problem: fmt.Sprintf("has %d ranges, and the pods of this cluster are of one: that of its Nodes", len(s.To)),
			Hint:    "name one range",
		}
	}
	ranges, err := pair(nodes, from.Saved, s.To[0])
	if err != nil {
		return nil, nil, err
	}
	if len(s.From) == 0 {
		s.From = emptied(ranges, from.Configured, s.To[0])
	}
	believe(ranges, s.From, s.BlockSize == 0)
	bits, err := size(ranges, s.BlockSize)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case from.Cilium.poolName() != "":
		err = from.Cilium.allot(ranges, s, bits)
	case from.Cilium != nil && from.Cilium.givesRanges(): // to nodes that join, from the beginning
		err = allot(ranges, s, bits, func(nodes []nodeipam.RangeHolder) (map[string]netip.Prefix, error) {
			return nodeipam.AllocateLast(nodes, s.To[0], bits)
		})
	default:
		err = allot(ranges, s, bits, func(nodes []nodeipam.RangeHolder) (map[string]netip.Prefix, error) {
			return nodeipam.Allocate(nodes, s.From, s.To[0], bits)
		})
	}
	return ranges, s.From, err
}

// believe accepts a Node's claim of its former range only if it takes nothing from another: a
// kubelet may annotate its own Node.
func believe(ranges []NodeRange, from []netip.Prefix, sameSize bool) {
	for i := range ranges {
		r := &ranges[i]
		claim := nodeipam.Range(r.claim)
		if !claim.IsValid() {
			r.Doubted = len(r.claim) > 0
			continue
		}
		within := len(from) == 0 || slices.ContainsFunc(from, func(f netip.Prefix) bool { return nodeipam.Within(f, claim) })
		another := slices.ContainsFunc(ranges, func(o NodeRange) bool {
			other := cmp.Or(nodeipam.Range(o.claim), nodeipam.Range(o.Original))
			return o.Node.Name != r.Node.Name && other.IsValid() && other.Overlaps(claim)
		})
		has := nodeipam.Range(r.Has)
		another = another || (sameSize && has.IsValid() && has.Bits() != claim.Bits())
		if r.Doubted = !within || another; !r.Doubted {
			r.Original = r.claim
		}
	}
}

// pair reads the ranges of all nodes in order of name, those that are gone included.
func pair(nodes []corev1.Node, saved map[string]*nodeipam.SavedNode, to netip.Prefix) ([]NodeRange, error) {
	var all []NodeRange
	here := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		here[n.Name] = true
		has := nodeipam.PodCIDRs(n)
		r := NodeRange{Node: n, Has: has, Kept: saved[n.Name] != nil}
		r.Original, r.claim = original(n, has, to)
		all = append(all, r)
	}
	for name, k := range saved {
		if !here[name] {
			r := NodeRange{Node: k.Node, Kept: true, Gone: true}
			r.Original, r.claim = original(k.Node, nodeipam.PodCIDRs(k.Node), to)
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b NodeRange) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	without := slices.IndexFunc(all, func(r NodeRange) bool { return len(r.Has) == 0 && !r.Gone && len(r.had()) == 0 })
	having := slices.ContainsFunc(all,
		func(r NodeRange) bool { return nodeipam.Range(r.had()).IsValid() || nodeipam.Range(r.Has).IsValid() })
	if without >= 0 && !having {
		return nil, &spec.Error{
			Field: podmove.Field,
			Problem: "cannot be done here: there are no pools of Calico that give addresses, and node " +
				all[without].Node.Name + " has no IPv4 range in spec.podCIDR",
			Hint: "replumb moves pods of Calico's pools, and of clusters whose Nodes carry their range (flannel, kindnet, kube-router, host-local)",
		}
	}
	return all, nil
}

// original are the ranges before the migration: a Node's own, or its claim once it was recreated.
func original(n *corev1.Node, has []string, to netip.Prefix) (known, claim []string) {
	if p := nodeipam.Range(has); p.IsValid() && !nodeipam.Within(to, p) {
		return has, nil
	}
	if text := n.Annotations[v1alpha1.AnnotationPodCIDRs]; text != "" {
		return nil, strings.Split(text, ",")
	}
	return nil, nil
}

// had are the ranges that a node had before the migration, as far as it is known or said.
func (r *NodeRange) had() []string {
	if len(r.Original) > 0 {
		return r.Original
	}
	return r.claim
}

// emptied are the ranges to be emptied: the configured one, else what covers all that Nodes had.
func emptied(ranges []NodeRange, configured, to netip.Prefix) []netip.Prefix {
	var originals []netip.Prefix
	for i := range ranges {
		if p := nodeipam.Range(ranges[i].Original); p.IsValid() {
			originals = append(originals, p)
		}
	}
	if len(originals) == 0 { // all have moved
		for i := range ranges {
			if p := nodeipam.Range(ranges[i].claim); p.IsValid() {
				originals = append(originals, p)
			}
		}
	}
	outside := func(p netip.Prefix) bool { return !nodeipam.Within(configured, p) }
	if configured.IsValid() && !configured.Overlaps(to) && !slices.ContainsFunc(originals, outside) {
		return []netip.Prefix{configured}
	}
	if len(originals) == 0 {
		return nil
	}
	return []netip.Prefix{nodeipam.Cover(originals)}
}

// size is the prefix length of each node's range: the wanted one, else that of all nodes.
func size(ranges []NodeRange, wanted int) (int, error) {
	bits := map[int]string{}
	for i := range ranges {
		p := cmp.Or(nodeipam.Range(ranges[i].Has), nodeipam.Range(ranges[i].Original))
		if p.IsValid() {
			bits[p.Bits()] = ranges[i].Node.Name
		}
	}
	if wanted != 0 {
		return wanted, nil
	}
	if len(bits) > 1 {
		return 0, &spec.Error{
			Field:   podmove.Field + ".blockSize",
			Problem: fmt.Sprintf("is empty, and nodes have ranges of different sizes: %s", sizes(bits)),
			Hint:    "name the prefix length of each node's range, such as 24",
		}
	}
	for b := range bits {
		return b, nil
	}
	return 0, nil
}

func sizes(bits map[int]string) string {
	var all []string
	for b, node := range bits {
		all = append(all, fmt.Sprintf("%s has a /%d", node, b))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// allot works out both ends for every node, with ranges of the target as allocate gives them.
func allot(
	ranges []NodeRange, s podmove.Spec, bits int, allocate func([]nodeipam.RangeHolder) (map[string]netip.Prefix, error),
) error {
	var holders []nodeipam.RangeHolder
	for i := range ranges {
		r := &ranges[i]
		has := nodeipam.Range(r.Has)
		if !nodeipam.Within(s.To[0], has) {
			has = cmp.Or(nodeipam.Range(r.Original), has)
		}
		holders = append(holders, nodeipam.RangeHolder{Name: r.Node.Name, Has: has})
	}
	targets, err := allocate(holders)
	if err != nil {
		return full(err)
	}
	for i := range ranges {
		r := &ranges[i]
		had := r.Has
		if len(had) == 0 {
			had = r.Original
		}
		r.Target = nodeipam.With(had, targets[r.Node.Name])
	}
	return allotOriginals(ranges, s, bits)
}

// full says that a target has not enough ranges.
func full(err error) error {
	return &spec.Error{
		Field: podmove.Field + ".to", Problem: err.Error(),
		Hint: "choose a wider target, or smaller ranges in " + podmove.Field + ".blockSize",
	}
}

// fullOriginals says the same of the ranges that are left.
func fullOriginals(err error) error {
	return &spec.Error{Field: podmove.Field + ".from", Problem: err.Error(), Hint: "name the whole range that nodes had theirs of"}
}

// allotOriginals gives nodes that joined meanwhile ranges for the way back.
func allotOriginals(ranges []NodeRange, s podmove.Spec, bits int) error {
	lacking := slices.ContainsFunc(ranges, func(r NodeRange) bool { return len(r.Original) == 0 })
	if !lacking || len(s.From) == 0 {
		return nil
	}
	var holders []nodeipam.RangeHolder
	for i := range ranges {
		holders = append(holders, nodeipam.RangeHolder{Name: ranges[i].Node.Name, Has: nodeipam.Range(ranges[i].Original)})
	}
	originals, err := nodeipam.Allocate(holders, nil, s.From[0], bits)
	if err != nil {
		return fullOriginals(err)
	}
	for i := range ranges {
		if r := &ranges[i]; len(r.Original) == 0 {
			r.Original = nodeipam.With(r.Has, originals[r.Node.Name])
		}
	}
	return nil
}
