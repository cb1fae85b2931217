package nodes

import (
	"net/netip"
	"net/url"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
)

// ControlPlaneNode is one of the old network, known by its member of etcd.
type ControlPlaneNode struct {
	v1alpha1.NodeStatus
	// Member says that its etcd is still one.
	Member bool
}

// Stage says how far it is.
func (c *ControlPlaneNode) Stage() Stage {
	switch {
	case c.Gone:
		return StageGone
	case !c.Member || c.Ended:
		return StageEnding
	case c.Successor != nil:
		return StageClosed
	}
	return StageServing
}

// Reversible reports whether it is as it was.
func (c *ControlPlaneNode) Reversible() bool { return c.Member && !c.Ended }

// OldControlPlane are the nodes of the control plane that are replaced: those whose members have peer URLs in the old network, and
// those that had. They are in the order in which they go, the leader last. Without a look at etcd they are those that are recorded.
func (s *Survey) OldControlPlane() []ControlPlaneNode {
	byName := map[string]*ControlPlaneNode{}
	var names []string
	for _, r := range s.Recorded {
		if r.Role == v1alpha1.RoleControlPlane {
			byName[r.Name] = &ControlPlaneNode{NodeStatus: r, Member: s.Etcd == nil && !r.Ended}
			names = append(names, r.Name)
		}
	}
	if s.Etcd != nil {
		names = s.addMembers(byName, names)
		names = s.Etcd.LeaderLast(names)
	}
	var out []ControlPlaneNode
	for _, name := range names {
		out = append(out, *byName[name])
	}
	return out
}

// addMembers adds those of the old network that are not recorded yet, and sorts the names.
func (s *Survey) addMembers(byName map[string]*ControlPlaneNode, names []string) []string {
	for i := range s.Etcd.Members {
		m := &s.Etcd.Members[i]
		if known := byName[m.Name]; known != nil {
			known.Member = true
			continue
		}
		if at := within(m.PeerURLs, s.Spec.Old.CIDRs); at.IsValid() && m.Name != "" {
			byName[m.Name] = &ControlPlaneNode{Member: true, NodeStatus: v1alpha1.NodeStatus{
				Name: m.Name, Role: v1alpha1.RoleControlPlane, Addresses: []string{at.String()},
			}}
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// within is the address of a URL that is in one of the ranges; invalid, if none is.
func within(urls []string, ranges []netip.Prefix) netip.Addr {
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue
		}
		a, err := netip.ParseAddr(u.Hostname())
		if err == nil && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return a
		}
	}
	return netip.Addr{}
}

// voters is how many members there are to be, before and after: successors whose predecessors are still there are on top.
func (s *Survey) voters() int {
	n := len(s.Etcd.Members)
	for _, c := range s.OldControlPlane() {
		if c.Member && c.Successor != nil && s.Etcd.Find(c.Successor.PeerURL) != nil {
			n--
		}
	}
	return n
}

// unassigned are members of the new network that are not recorded as a successor yet.
func (s *Survey) unassigned() []v1alpha1.MemberStatus {
	var taken []string
	for _, r := range s.Recorded {
		if r.Successor != nil {
			taken = append(taken, r.Successor.PeerURL)
		}
	}
	var out []v1alpha1.MemberStatus
	for i := range s.Etcd.Members {
		m := &s.Etcd.Members[i]
		if within(m.PeerURLs, s.Spec.New.CIDRs).IsValid() &&
			!slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(taken, u) }) {
			out = append(out, v1alpha1.MemberStatus{Name: m.Name, PeerURL: m.PeerURLs[0]})
		}
	}
	return out
}
