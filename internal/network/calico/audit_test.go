package calico

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sound is a state in which everything fits: a pod and a tunnel on node a, an address that Windows
// keeps on node b.
func sound() (*State, []corev1.Pod, []corev1.Node) {
	pool, one, two := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.0.0/26"), netip.MustParsePrefix("10.244.1.0/26")
	s := &State{
		Ready: true, Pools: []Pool{{Name: "default", CIDR: pool}},
		Blocks: []Block{
			{Name: "one", CIDR: one, Node: "a", Allocations: []Allocation{
				{
					Addr:       netip.MustParseAddr("10.244.0.0"),
					Handle:     "vxlan-tunnel-addr-a",
					Attributes: map[string]string{"type": "vxlanTunnelAddress", "node": "a"},
				},
				{
					Addr:       netip.MustParseAddr("10.244.0.1"),
					Handle:     "Pod.Web",
					Attributes: map[string]string{"namespace": "shop", "pod": "web"},
				},
			}},
			{Name: "two", CIDR: two, Node: "b", Allocations: []Allocation{
				{Addr: netip.MustParseAddr("10.244.1.0"), Handle: "windows-reserved-ipam-handle"},
			}},
		},
		Affinities: []Affinity{{Name: "a-one", Node: "a", CIDR: one}, {Name: "b-two", Node: "b", CIDR: two}},
		Handles:    []Handle{{Name: "pod.web", ID: "pod.web"}, {Name: "t", ID: "vxlan-tunnel-addr-a"}},
	}
	pods := []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: corev1.PodStatus{PodIP: "10.244.0.1"},
	}}
	tunnel := map[string]string{"projectcalico.org/IPv4VXLANTunnelAddr": "10.244.0.0"}
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: tunnel}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	return s, pods, nodes
}

// TestAudit breaks one thing at a time.
func TestAudit(t *testing.T) {
	pod := func(name, ip string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Status: corev1.PodStatus{PodIP: ip}}
	}
	for _, tt := range []struct {
		name  string
		spoil func(*State, *[]corev1.Pod, *[]corev1.Node)
		want  []string
	}{
		{"clean", func(*State, *[]corev1.Pod, *[]corev1.Node) {}, nil},
		{"leaked", func(_ *State, p *[]corev1.Pod, _ *[]corev1.Node) { *p = nil }, []string{
			"Leaked address 10.244.0.1: is given out to pod shop/web, and nothing uses it",
		}},
		{"leaked tunnel", func(_ *State, _ *[]corev1.Pod, n *[]corev1.Node) { (*n)[0].Annotations = nil }, []string{
			"Leaked address 10.244.0.0: is given out to vxlanTunnelAddress of node a, and nothing uses it",
		}},
		{"not given out", func(_ *State, p *[]corev1.Pod, _ *[]corev1.Node) { *p = append(*p, pod("thief", "10.244.0.9")) }, []string{
			"NotAllocated address 10.244.0.9: is used by pod shop/thief and not given out",
		}},
		{"outside", func(_ *State, p *[]corev1.Pod, _ *[]corev1.Node) { *p = append(*p, pod("stray", "10.9.0.9")) }, []string{
			"OutsidePools address 10.9.0.9: is used by pod shop/stray and in no pool",
		}},
		{"leaked handle", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			s.Handles = append(s.Handles, Handle{Name: "h", ID: "h"})
		}, []string{
			"LeakedHandle handle h: holds no address",
		}},
		{"block outside", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			s.Pools[0].CIDR = netip.MustParsePrefix("10.244.0.0/24")
		}, []string{"BlockOutside block 10.244.1.0/26: is in no pool"}},
		{"affinity without block", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			s.Affinities = append(s.Affinities, Affinity{Name: "a-x", Node: "a", CIDR: netip.MustParsePrefix("10.244.9.0/26")})
		}, []string{"StaleAffinity affinity a-x: is for block 10.244.9.0/26, which does not exist"}},
		{"block without affinity", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) { s.Affinities = s.Affinities[:1] }, []string{
			"ForeignBlock block 10.244.1.0/26: belongs to node b, which has no affinity for it",
		}},
		{"affinity of another node", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			s.Affinities = append(s.Affinities, Affinity{Name: "a-two", Node: "a", CIDR: s.Blocks[1].CIDR})
		}, []string{"ForeignBlock affinity a-two: names node a, and block 10.244.1.0/26 belongs to b"}},
		{"node gone", func(_ *State, _ *[]corev1.Pod, n *[]corev1.Node) { *n = (*n)[:1] }, []string{
			"MissingNode block 10.244.1.0/26: belongs to node b, which does not exist",
		}},
		{"overlapping blocks", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			wide := netip.MustParsePrefix("10.244.1.0/25")
			s.Blocks = append(s.Blocks, Block{Name: "wide", CIDR: wide, Node: "b"})
			s.Affinities = append(s.Affinities, Affinity{Name: "b-wide", Node: "b", CIDR: wide})
		}, []string{"DuplicateBlock block 10.244.1.0/25: overlaps block 10.244.1.0/26"}},
		{"borrowed block without an affinity", func(s *State, _ *[]corev1.Pod, _ *[]corev1.Node) {
			s.Blocks[1].Node, s.Affinities = "", s.Affinities[:1]
		}, nil},
		{"an address used twice", func(s *State, p *[]corev1.Pod, _ *[]corev1.Node) { *p = append(*p, pod("twin", "10.244.0.1")) }, []string{
			"UsedTwice address 10.244.0.1: is used by pod shop/web and by pod shop/twin",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, pods, nodes := sound()
			tt.spoil(s, &pods, &nodes)
			var got []string
			for _, p := range s.Audit(pods, nodes) {
				got = append(got, string(p.Kind)+" "+p.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q\nwant %q", got, tt.want)
			}
		})
	}
}
