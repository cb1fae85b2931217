package nodes

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/etcd"
)

// ControlPlaneNode is known by its member of etcd, or by its Node where etcd is external.
type ControlPlaneNode struct {
	v1alpha1.NodeStatus
	// Member says that its etcd is still one or, where etcd is elsewhere, that its Node is there.
	Member bool
}

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

func (c *ControlPlaneNode) Reversible() bool { return c.Member && !c.Ended }

// controlPlaneView is the part of an Inventory about the control plane and its etcds.
type controlPlaneView struct{ *Inventory }

func (s *Inventory) ControlPlane() controlPlaneView { return controlPlaneView{s} }

// Old are the nodes of the control plane to be replaced, in their order, the leader last: those
// with members in the old network now or before. With an external etcd they go by Nodes. A run that
// is taken up ends first what it has begun, whoever leads by then: two would be between both.
func (s controlPlaneView) Old() []ControlPlaneNode {
	byName := map[string]*ControlPlaneNode{}
	var names []string
	for _, r := range s.Recorded {
		if r.Role == v1alpha1.RoleControlPlane {
			byName[r.Name] = &ControlPlaneNode{NodeStatus: r, Member: s.Etcd == nil && !r.Ended}
			names = append(names, r.Name)
		}
	}
	switch {
	case s.Spec.external():
		names = s.addNodes(byName, names)
	case s.Etcd != nil:
		names = s.addMembers(byName, names)
		names = s.Etcd.LeaderLast(names)
	}
	var out []ControlPlaneNode
	for _, name := range names {
		out = append(out, *byName[name])
	}
	slices.SortStableFunc(out, func(a, b ControlPlaneNode) int { return cmp.Compare(a.turn(), b.turn()) })
	return out
}

// turn is zero for nodes that are begun with, and one for others.
func (c *ControlPlaneNode) turn() int {
	if c.Stage() == StageServing {
		return 1
	}
	return 0
}

// addMembers adds those of the old network that are not recorded yet, and sorts the names.
func (s controlPlaneView) addMembers(byName map[string]*ControlPlaneNode, names []string) []string {
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

func (s controlPlaneView) addNodes(byName map[string]*ControlPlaneNode, names []string) []string {
	for _, c := range byName {
		c.Member = false
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if known := byName[n.Name]; known != nil {
			known.Member = true
			continue
		}
		status := statusOf(n, v1alpha1.RoleControlPlane)
		if isControlPlane(n) && inside(status.Addresses, s.Spec.Old.CIDRs).IsValid() {
			byName[n.Name] = &ControlPlaneNode{Member: true, NodeStatus: status}
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// inside is the first of some addresses that is in one of the ranges; invalid, if none is.
func inside(addresses []string, ranges []netip.Prefix) netip.Addr {
	for _, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err == nil && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return a
		}
	}
	return netip.Addr{}
}

// newServers are API servers of the new network that are not recorded as successors yet.
func (s controlPlaneView) newServers(servers []netip.AddrPort) []v1alpha1.MemberStatus {
	var out []v1alpha1.MemberStatus
	for _, a := range servers {
		at := "https://" + a.String()
		new := slices.ContainsFunc(s.Spec.New.CIDRs, func(p netip.Prefix) bool { return p.Contains(a.Addr()) })
		taken := slices.ContainsFunc(s.Recorded, func(r v1alpha1.NodeStatus) bool {
			return r.Successor != nil &&
				within([]string{r.Successor.PeerURL}, []netip.Prefix{netip.PrefixFrom(a.Addr(), a.Addr().BitLen())}).IsValid()
		})
		if new && !taken {
			out = append(out, v1alpha1.MemberStatus{Name: a.Addr().String(), PeerURL: at})
		}
	}
	return out
}

// eventsMember is the member of the second etcd on a node's machine; nil, if there is none.
func (s controlPlaneView) eventsMember(c *ControlPlaneNode) *etcd.Member {
	if s.Events == nil {
		return nil
	}
	for i := range s.Events.Members {
		m := &s.Events.Members[i]
		if at := within(m.PeerURLs, s.Spec.Old.CIDRs); at.IsValid() && slices.Contains(c.Addresses, at.String()) {
			return m
		}
	}
	return nil
}

// eventsSuccessor is the one on the machine of the node's successor; nil, if none has joined.
func (s controlPlaneView) eventsSuccessor(c *ControlPlaneNode) *etcd.Member {
	if s.Events == nil || c.Successor == nil {
		return nil
	}
	host := within([]string{c.Successor.PeerURL}, s.Spec.New.CIDRs)
	return memberAt(s.Events, host, s.Spec.New.CIDRs)
}

// memberAt is the member whose peer URL has an address.
func memberAt(all *etcd.Membership, at netip.Addr, ranges []netip.Prefix) *etcd.Member {
	for i := range all.Members {
		if here := within(all.Members[i].PeerURLs, ranges); here.IsValid() && here == at {
			return &all.Members[i]
		}
	}
	return nil
}

func (s controlPlaneView) eventsVoters() int {
	n := len(s.Events.Members)
	for _, c := range s.Old() {
		if s.eventsMember(&c) != nil && s.eventsSuccessor(&c) != nil {
			n--
		}
	}
	return n
}

func (s controlPlaneView) eventsNames() []string {
	var names []string
	for _, c := range s.Old() {
		if m := s.eventsMember(&c); m != nil {
			names = append(names, m.Called())
		}
	}
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

// voters is how many members there are before and after, without successors on top.
func (s controlPlaneView) voters() int {
	n := len(s.Etcd.Members)
	for _, c := range s.Old() {
		if c.Member && c.Successor != nil && s.Etcd.Find(c.Successor.PeerURL) != nil {
			n--
		}
	}
	return n
}

// unassigned are members of the new network that are not recorded as a successor yet.
func (s controlPlaneView) unassigned() []v1alpha1.MemberStatus {
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

// eventsLeaving is what the second etcd calls the member of a node; nothing, if it has none there.
func (s controlPlaneView) eventsLeaving(c *ControlPlaneNode) []string {
	if m := s.eventsMember(c); m != nil {
		return []string{m.Called()}
	}
	return nil
}

func (s controlPlaneView) eventsInTransition(c *ControlPlaneNode) []string {
	all := s.eventsLeaving(c)
	if m := s.eventsSuccessor(c); m != nil {
		all = append(all, m.PeerURLs[0])
	}
	if c.EventsSuccessor != nil {
		all = append(all, c.EventsSuccessor.Name, c.EventsSuccessor.PeerURL)
	}
	return all
}
