package nodes

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/etcd"
)

// TestEndpointsFollow: a run that is taken up when all old members have gone finds the new ones.
func TestEndpointsFollow(t *testing.T) {
	e := &v1alpha1.EtcdSpec{Endpoints: []string{"https://10.1.0.11:2379"}}
	known := []v1alpha1.NodeStatus{
		{Name: "cp1", Successor: &v1alpha1.MemberStatus{Name: "cp4", PeerURL: "https://10.2.0.11:2380"}}, {Name: "cp2"},
	}
	got := endpoints(e, known)
	e.External = true
	if stay := endpoints(e, known); !slices.Equal(stay, e.Endpoints) {
		t.Errorf("of an etcd elsewhere: %v", stay)
	}
	if want := []string{"https://10.1.0.11:2379", "https://10.2.0.11:2379"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestBegunGoesFirst: a node that became the leader after another one had joined for it still goes
// before those that nothing was begun with.
func TestBegunGoesFirst(t *testing.T) {
	old, new := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("10.2.0.0/24")
	member := func(id uint64, name, at string) etcd.Member {
		return etcd.Member{ID: id, Name: name, PeerURLs: []string{"https://" + at + ":2380"}}
	}
	inventory := &Inventory{
		Spec: Spec{Old: NodeSet{CIDRs: []netip.Prefix{old}}, New: NodeSet{CIDRs: []netip.Prefix{new}}, ControlPlane: &v1alpha1.ControlPlaneSpec{}},
		Recorded: []v1alpha1.NodeStatus{
			{Name: "cp1", Role: v1alpha1.RoleControlPlane},
			{Name: "cp2", Role: v1alpha1.RoleControlPlane, Successor: &v1alpha1.MemberStatus{Name: "cp4", PeerURL: "https://10.2.0.14:2380"}},
			{Name: "cp3", Role: v1alpha1.RoleControlPlane},
		},
		Etcd: &etcd.Membership{
			Leader: 2,
			Members: []etcd.Member{
				member(1, "cp1", "10.1.0.11"), member(2, "cp2", "10.1.0.12"), member(3, "cp3", "10.1.0.13"), member(4, "cp4", "10.2.0.14"),
			},
		},
	}
	order := func() (names []string) {
		for _, c := range inventory.ControlPlane().Old() {
			names = append(names, c.Name)
		}
		return names
	}
	if got, want := order(), []string{"cp2", "cp1", "cp3"}; !slices.Equal(got, want) {
		t.Errorf("in the middle of cp2 the order is %v, want %v", got, want)
	}
	inventory.Recorded[1].Successor = nil
	if got, want := order(), []string{"cp1", "cp3", "cp2"}; !slices.Equal(got, want) {
		t.Errorf("before anything has begun the order is %v, want %v", got, want)
	}
}
