// Package ranges compares the address ranges of clusters and other networks, and proposes free
// ones. Package inventory reads them.
package ranges

import (
	"cmp"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Use is what a range is for.
type Use string

// The uses, in the order in which people read of them.
const (
	Services Use = "Services"
	Pods     Use = "pods"
	Nodes    Use = "nodes"
	// Network is one beside the cluster, which someone has named.
	Network Use = "network"
	// Planned is the target of a Migration: it is not in use for certain, and it is not free.
	Planned Use = "planned"
)

func order(u Use) int { return slices.Index([]Use{Services, Pods, Nodes, Network, Planned}, u) }

// Range is a range of addresses, and who says that it is in use.
type Range struct {
	// Cluster that has it; empty of a network that was given on the command line.
	Cluster string       `json:"cluster,omitempty"`
	Use     Use          `json:"use"`
	Prefix  netip.Prefix `json:"range"`
	// Source is the object and its field.
	Source string `json:"source"`
	// Addresses are those seen, where the range only holds them: of nodes, and of pods outside of
	// all ranges.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// PerNode says that it is one node's part, or some of these, of a range that is not known.
	PerNode bool `json:"perNode,omitempty"`
}

func (r *Range) seen() bool { return len(r.Addresses) > 0 }

// Sort orders ranges for people: by cluster, use and address.
func Sort(all []Range) {
	slices.SortStableFunc(all, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(order(a.Use), order(b.Use)), a.Prefix.Compare(b.Prefix),
			cmp.Compare(a.Source, b.Source))
	})
}

// SharedSpace is for carrier-grade NAT (RFC 6598), and used by Tailscale and some clouds.
func SharedSpace() netip.Prefix { return netip.MustParsePrefix("100.64.0.0/10") }

// InSharedSpace are the ranges of clusters that lie in shared address space, or reach into it.
func InSharedSpace(all []Range) []Range {
	var out []Range
	for _, r := range outermost(all) {
		if r.Cluster != "" && r.Use != Network && r.Use != Planned && covers(SharedSpace(), &r) {
			out = append(out, r)
		}
	}
	return out
}

// Overlap is two ranges that share addresses.
type Overlap struct {
	A Range `json:"a"`
	B Range `json:"b"`
}

// Overlaps are pairs of ranges that share addresses and must not. By design these may:
//
//   - ranges of one use in one cluster, such as a node's and the cluster's;
//   - nodes, in a named network, in each other's, and in that of pods with its addresses;
//   - two networks, which are others' to part;
//   - a network that a cluster's Migration names, and another cluster, whose it may be;
//   - targets of Migrations, which checks compare.
func Overlaps(all []Range) []Overlap {
	rest := outermost(all)
	var out []Overlap
	for i := range rest {
		for j := i + 1; j < len(rest); j++ {
			if conflict(&rest[i], &rest[j]) {
				out = append(out, Overlap{A: rest[i], B: rest[j]})
			}
		}
	}
	return out
}

func conflict(a, b *Range) bool {
	if !a.Prefix.Overlaps(b.Prefix) || byDesign(a, b) {
		return false
	}
	switch {
	case a.seen() && b.seen():
		return a.Cluster != b.Cluster &&
			slices.ContainsFunc(a.Addresses, func(x netip.Addr) bool { return slices.Contains(b.Addresses, x) })
	case a.seen():
		return covers(b.Prefix, a)
	}
	return covers(a.Prefix, b)
}

func byDesign(a, b *Range) bool {
	if a.Use == Planned || b.Use == Planned {
		return true
	}
	same := a.Cluster == b.Cluster
	if a.Use != Network && b.Use != Network {
		return same && a.Use == b.Use
	}
	return a.Use == b.Use || a.seen() || b.seen() || !same && a.Cluster != "" && b.Cluster != ""
}

func covers(p netip.Prefix, r *Range) bool {
	if r.seen() {
		return slices.ContainsFunc(r.Addresses, p.Contains)
	}
	return p.Overlaps(r.Prefix)
}

// outermost drops ranges inside another one of the same cluster and use.
func outermost(all []Range) []Range {
	var out []Range
	for i := range all {
		if !contained(all, i) {
			out = append(out, all[i])
		}
	}
	return out
}

func contained(all []Range, i int) bool {
	r := &all[i]
	if r.Use == Network {
		return false // each has a name
	}
	for j := range all {
		o := &all[j]
		if i == j || o.Cluster != r.Cluster || o.Use != r.Use || o.seen() || !within(o.Prefix, r.Prefix) {
			continue
		}
		if o.Prefix != r.Prefix || r.seen() || j < i { // of equal ones the first stays
			return true
		}
	}
	return false
}

func within(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// surroundings are the assumed size of a machine's network, which no object has.
const surroundings4, surroundings6 = 24, 64

// Taken are the addresses that no proposal may have.
func Taken(all []Range) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for i := range all {
		b.AddPrefix(all[i].Prefix.Masked())
		for _, a := range all[i].Addresses {
			b.AddPrefix(Surroundings(a))
		}
	}
	set, err := b.IPSet()
	if err != nil { // only of invalid prefixes, which no range has
		return &netipx.IPSet{}
	}
	return set
}

// Surroundings are the addresses around one that was seen that proposals stay clear of.
func Surroundings(a netip.Addr) netip.Prefix {
	bits := surroundings4
	if a.Is6() {
		bits = surroundings6
	}
	return netip.PrefixFrom(a, bits).Masked()
}
