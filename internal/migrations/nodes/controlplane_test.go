package nodes

import (
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestEndpointsFollow: a run that is taken up when all old members have gone finds the new ones.
func TestEndpointsFollow(t *testing.T) {
	s := Spec{ControlPlane: &v1alpha1.ControlPlaneSpec{Etcd: v1alpha1.EtcdSpec{Endpoints: []string{"https://10.1.0.11:2379"}}}}
	got := s.endpoints([]v1alpha1.NodeStatus{
		{Name: "cp1", Successor: &v1alpha1.MemberStatus{Name: "cp4", PeerURL: "https://10.2.0.11:2380"}}, {Name: "cp2"},
	})
	if want := []string{"https://10.1.0.11:2379", "https://10.2.0.11:2379"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
