package inplace

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// TestWhereNewPodsBelong: a network with several ranges may give a pod an address of any of them,
// and host-local one of its Node's own.
func TestWhereNewPodsBelong(t *testing.T) {
	nodes := []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.0.0/24"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "node3"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.2.0/24"}}},
	}
	for _, tt := range []struct {
		name      string
		from      v1alpha1.CNIName
		direction engine.Direction
		want      string
	}{
		{"to the new network", v1alpha1.HostLocal, engine.Forward, "[10.200.0.0/16]"},
		{"back to host-local", v1alpha1.HostLocal, engine.Backward, "[10.244.2.0/24]"},
		{"back to Calico with two pools", v1alpha1.Calico, engine.Backward, "[10.244.0.0/24 10.244.2.0/24]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &switchover.Inventory{
				Nodes:     nodes,
				Ranges:    []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("10.244.2.0/24")},
				Manifests: &manifests.ManifestSet{Ranges: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}},
				Spec:      switchover.Spec{From: tt.from},
			}
			p := Planner{Planner: &switchover.Planner{Inventory: s}, inPlace: New(s)}
			if got := fmt.Sprint(p.canary([]string{"node3"}, tt.direction).(*connectivity.Step).WithinOn["node3"]); got != tt.want {
				t.Errorf("a pod on node3 belongs to %s, want %s", got, tt.want)
			}
		})
	}
}
