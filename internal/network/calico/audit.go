package calico

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// tunnelAnnotations are in libcalico-go/lib/backend/k8s/conversion.
func tunnelAnnotations() []string {
	return []string{
		"projectcalico.org/IPv4VXLANTunnelAddr", "projectcalico.org/IPv4IPIPTunnelAddr", "projectcalico.org/IPv4WireguardInterfaceAddr",
	}
}

// TunnelAddresses are the addresses of a node's tunnels, by annotation.
func TunnelAddresses(node *corev1.Node) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for _, key := range tunnelAnnotations() {
		text, _, _ := strings.Cut(node.Annotations[key], "/")
		if a, err := netip.ParseAddr(text); err == nil {
			all[key] = a
		}
	}
	return all
}

// PodAddresses are a pod's own: none on the host's network or after its end.
func PodAddresses(pod *corev1.Pod) []netip.Addr {
	if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var all []netip.Addr
	texts := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// Problem is something in Calico's data that does not fit together, or not with what runs.
type Problem struct {
	// Kind is a stable word.
	Kind ProblemKind
	// Object in question, such as "address 10.244.0.7" or "block 10.244.0.0/26".
	Object  string
	Message string
}

func (p Problem) String() string { return p.Object + ": " + p.Message }

// ProblemKind is what sort of problem it is.
type ProblemKind string

// The kinds of problems, those that `calicoctl ipam check` looks for and some more.
const (
	Leaked         ProblemKind = "Leaked"         // given out, and nothing uses it
	NotAllocated   ProblemKind = "NotAllocated"   // used, and not given out
	OutsidePools   ProblemKind = "OutsidePools"   // used, and in no pool
	LeakedHandle   ProblemKind = "LeakedHandle"   // a handle without addresses
	BlockOutside   ProblemKind = "BlockOutside"   // a block in no pool
	StaleAffinity  ProblemKind = "StaleAffinity"  // an affinity without its block
	ForeignBlock   ProblemKind = "ForeignBlock"   // a block whose affinity names another node, or none
	MissingNode    ProblemKind = "MissingNode"    // a block of a node that is not there
	DuplicateBlock ProblemKind = "DuplicateBlock" // blocks that overlap
	UsedTwice      ProblemKind = "UsedTwice"      // two use the same address
)

// Audit finds contradictions between pools, blocks, affinities, handles, pods and nodes. Pods and
// nodes must be read after the State, so that new allocations count as used.
func (s *State) Audit(pods []corev1.Pod, nodes []corev1.Node) []Problem {
	a := &audit{State: s, users: map[netip.Addr]string{}, given: map[netip.Addr]string{}, nodes: map[string]bool{}}
	for i := range pods {
		for _, addr := range PodAddresses(&pods[i]) {
			a.use(addr, "pod "+pods[i].Namespace+"/"+pods[i].Name)
		}
	}
	for i := range nodes {
		a.nodes[nodes[i].Name] = true
		for _, addr := range TunnelAddresses(&nodes[i]) {
			a.use(addr, "tunnel of node "+nodes[i].Name)
		}
	}
	a.blocks()
	a.inUse()
	a.affinities()
	a.handles()
	slices.SortFunc(a.problems, func(x, y Problem) int { return strings.Compare(x.String(), y.String()) })
	return a.problems
}

type audit struct {
	*State
	// users is what uses an address, given the handle it is given out under.
	users, given map[netip.Addr]string
	nodes        map[string]bool
	problems     []Problem
}

func (a *audit) found(kind ProblemKind, object, format string, args ...any) {
	a.problems = append(a.problems, Problem{Kind: kind, Object: object, Message: fmt.Sprintf(format, args...)})
}

func (a *audit) use(addr netip.Addr, user string) {
	if other := a.users[addr]; other != "" {
		a.found(UsedTwice, "address "+addr.String(), "is used by %s and by %s", other, user)
	}
	a.users[addr] = user
}

func (a *audit) blocks() {
	for i := range a.Blocks {
		b := &a.Blocks[i]
		name := "block " + b.CIDR.String()
		if a.PoolOf(b.CIDR.Addr()) == nil {
			a.found(BlockOutside, name, "is in no pool")
		}
		if b.Node != "" && !a.nodes[b.Node] {
			a.found(MissingNode, name, "belongs to node %s, which does not exist", b.Node)
		}
		for j := range a.Blocks[:i] {
			if o := a.Blocks[j].CIDR; o.Overlaps(b.CIDR) {
				a.found(DuplicateBlock, name, "overlaps block %s", o)
			}
		}
		for _, given := range b.Allocations {
			a.given[given.Addr] = given.Handle
			// An address that Windows nodes reserve has a handle of its own name and no user.
			if a.users[given.Addr] == "" && !strings.HasPrefix(given.Handle, "windows-reserved-ipam-handle") {
				a.found(Leaked, "address "+given.Addr.String(), "is given out to %s, and nothing uses it", describe(given))
			}
		}
	}
}

func describe(a Allocation) string {
	if pod := a.Attributes["pod"]; pod != "" {
		return "pod " + a.Attributes["namespace"] + "/" + pod
	}
	if kind := a.Attributes["type"]; kind != "" {
		return kind + " of node " + a.Attributes["node"]
	}
	return "handle " + a.Handle
}

func (a *audit) inUse() {
	for addr, user := range a.users {
		if _, given := a.given[addr]; given {
			continue
		}
		if a.PoolOf(addr) == nil {
			a.found(OutsidePools, "address "+addr.String(), "is used by %s and in no pool", user)
			continue
		}
		a.found(NotAllocated, "address "+addr.String(), "is used by %s and not given out", user)
	}
}

func (a *audit) affinities() {
	owned := map[netip.Prefix]string{}
	for i := range a.Affinities {
		f := &a.Affinities[i]
		b := a.BlockAt(f.CIDR)
		switch {
		case b == nil:
			a.found(StaleAffinity, "affinity "+f.Name, "is for block %s, which does not exist", f.CIDR)
		case b.Node != "" && b.Node != f.Node:
			a.found(ForeignBlock, "affinity "+f.Name, "names node %s, and block %s belongs to %s", f.Node, f.CIDR, b.Node)
		default:
			owned[f.CIDR] = f.Node
		}
	}
	for i := range a.Blocks {
		if b := &a.Blocks[i]; b.Node != "" && owned[b.CIDR] == "" {
			a.found(ForeignBlock, "block "+b.CIDR.String(), "belongs to node %s, which has no affinity for it", b.Node)
		}
	}
}

func (a *audit) handles() {
	used := map[string]bool{}
	for _, handle := range a.given {
		used[strings.ToLower(handle)] = true
	}
	for i := range a.Handles {
		if h := &a.Handles[i]; !used[strings.ToLower(h.ID)] {
			a.found(LeakedHandle, "handle "+h.Name, "holds no address")
		}
	}
}

// PoolOf is the pool that an address lies in; nil, if none.
func (s *State) PoolOf(addr netip.Addr) *Pool {
	for i := range s.Pools {
		if s.Pools[i].CIDR.Contains(addr) {
			return &s.Pools[i]
		}
	}
	return nil
}

// BlockAt is the block of exactly this range; nil, if there is none.
func (s *State) BlockAt(cidr netip.Prefix) *Block {
	for i := range s.Blocks {
		if s.Blocks[i].CIDR == cidr {
			return &s.Blocks[i]
		}
	}
	return nil
}
