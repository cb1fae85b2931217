package nodes

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
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
