package switchover

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
			if got := fmt.Sprint(OfNodes(nodes, known)); got != tt.want {
				t.Errorf("they are %s, want %s", got, tt.want)
			}
		})
	}
}
