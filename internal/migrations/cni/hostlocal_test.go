package cni

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// TestRangesOfNodes: as few as say the same, and no address that no node has.
func TestRangesOfNodes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		known []string
		nodes [][]string
		want  string
	}{
		{"one", nil, [][]string{{"10.244.0.0/24"}}, "[10.244.0.0/24]"},
		{"four that join", nil, [][]string{{"10.244.3.0/24"}, {"10.244.0.0/24"}, {"10.244.1.0/24"}, {"10.244.2.0/24"}}, "[10.244.0.0/22]"},
		{"three", nil, [][]string{{"10.244.0.0/24"}, {"10.244.1.0/24"}, {"10.244.2.0/24"}}, "[10.244.0.0/23 10.244.2.0/24]"},
		{"neighbours that are no halves", nil, [][]string{{"10.244.1.0/24"}, {"10.244.2.0/24"}}, "[10.244.1.0/24 10.244.2.0/24]"},
		{"one has joined", []string{"10.244.0.0/23"}, [][]string{{"10.244.0.0/24"}, {"10.244.1.0/24"}, {"10.244.2.0/24"}}, "[10.244.0.0/23 10.244.2.0/24]"},
		{"one has gone", []string{"10.244.0.0/23"}, [][]string{{"10.244.0.0/24"}}, "[10.244.0.0/23]"},
		{
			"both families", nil,
			[][]string{{"10.244.0.0/24", "fd00:0:0:0::/64"}, {"10.244.1.0/24", "fd00:0:0:1::/64"}},
			"[10.244.0.0/23 fd00::/63]",
		},
		{"none", nil, [][]string{{}, {""}}, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var nodes []corev1.Node
			for _, ranges := range tt.nodes {
				nodes = append(nodes, corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: ranges}})
			}
			var known []netip.Prefix
			for _, text := range tt.known {
				known = append(known, netip.MustParsePrefix(text))
			}
			if got := fmt.Sprint(ofNodes(nodes, known)); got != tt.want {
				t.Errorf("they are %s, want %s", got, tt.want)
			}
		})
	}
}

// TestWhereNewPodsBelong: a network with several ranges may give a pod an address of any of them, and host-local one of its Node's own.
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
			s := &Inventory{
				Nodes:     nodes,
				Ranges:    ofNodes(nodes, nil),
				Manifests: &Manifests{Ranges: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}},
				Spec:      Spec{From: tt.from},
			}
			p := inPlacePlanner{Planner: &Planner{Inventory: s}, inPlace: newInPlace(s)}
			if got := fmt.Sprint(p.canary([]string{"node3"}, tt.direction).(*connectivity.Step).WithinOn["node3"]); got != tt.want {
				t.Errorf("a pod on node3 belongs to %s, want %s", got, tt.want)
			}
		})
	}
}
