package ranges

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// of reads a range of a cluster: its use, its prefix, and what was seen, such as "nodes
// 192.0.2.0/30 192.0.2.1".
func of(t *testing.T, name, text string) Range {
	t.Helper()
	words := strings.Fields(text)
	r := Range{Cluster: name, Use: Use(words[0]), Prefix: netip.MustParsePrefix(words[1]), Source: text}
	for _, a := range words[2:] {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
	}
	return r
}

func TestOverlaps(t *testing.T) {
	for _, tt := range []struct {
		name     string
		a, b     []string // of two clusters
		networks []string
		want     []string
	}{
		{name: "apart", a: []string{"Services 10.96.0.0/16", "pods 10.244.0.0/16", "nodes 192.0.2.0/30 192.0.2.1"}},
		{name: "pods and Services", a: []string{"Services 10.96.0.0/12", "pods 10.100.0.0/16"}, want: []string{"10.96.0.0/12 10.100.0.0/16"}},
		{
			name: "a node among pods", a: []string{"pods 10.0.0.0/8", "nodes 10.1.0.0/30 10.1.0.1 10.1.0.2"},
			want: []string{"10.0.0.0/8 10.1.0.0/30"},
		},
		{name: "beside the nodes that were seen", a: []string{"Services 10.1.0.64/26", "nodes 10.1.0.0/24 10.1.0.1 10.1.0.200"}},
		{name: "parts of nodes", a: []string{"pods 10.244.0.0/16", "pods 10.244.3.0/24"}},
		{
			name: "between clusters, once", a: []string{"pods 10.244.0.0/16", "pods 10.244.0.0/16", "pods 10.244.3.0/24"},
			b: []string{"pods 10.244.0.0/16", "pods 10.244.0.0/24"}, want: []string{"10.244.0.0/16 10.244.0.0/16"},
		},
		{name: "nodes of one network", a: []string{"nodes 192.0.2.0/30 192.0.2.1"}, b: []string{"nodes 192.0.2.0/30 192.0.2.2"}},
		{
			name: "nodes of one address", a: []string{"nodes 192.0.2.0/30 192.0.2.1"}, b: []string{"nodes 192.0.2.1/32 192.0.2.1"},
			want: []string{"192.0.2.0/30 192.0.2.1/32"},
		},
		{
			name: "a network", a: []string{"Services 10.96.0.0/16", "nodes 10.0.0.1/32 10.0.0.1"}, networks: []string{"network 10.0.0.0/8"},
			want: []string{"10.96.0.0/16 10.0.0.0/8"},
		},
		{name: "networks", networks: []string{"network 10.0.0.0/8", "network 10.1.0.0/16"}},
		{
			name: "a network that a Migration names", a: []string{"network 10.244.0.0/16", "pods 10.244.0.0/15"}, b: []string{"pods 10.244.1.0/24"},
			want: []string{"10.244.0.0/16 10.244.0.0/15", "10.244.0.0/15 10.244.1.0/24"},
		},
		{name: "a target", a: []string{"planned 10.244.0.0/16", "Services 10.244.0.0/16"}},
		{name: "pods of the machines' network", a: []string{"nodes 10.0.0.0/30 10.0.0.1", "pods 10.0.0.0/30 10.0.0.2"}},
		{
			name: "IPv6", a: []string{"Services fd00:1::/108", "pods fd00::/16", "nodes 2001:db8::1/128 2001:db8::1"},
			want: []string{"fd00:1::/108 fd00::/16"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []Range
			for name, texts := range map[string][]string{"a": tt.a, "b": tt.b, "": tt.networks} {
				for _, text := range texts {
					all = append(all, of(t, name, text))
				}
			}
			Sort(all)
			got := map[string]bool{}
			for _, o := range Overlaps(all) {
				got[o.A.Prefix.String()+" "+o.B.Prefix.String()] = true
				got[o.B.Prefix.String()+" "+o.A.Prefix.String()] = true
			}
			for _, w := range tt.want {
				if !got[w] {
					t.Errorf("%s is not found, in %v", w, got)
				}
			}
			if len(Overlaps(all)) != len(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestInSharedSpace(t *testing.T) {
	all := []Range{
		of(
			t,
			"a",
			"Services 100.64.0.0/13",
		),
		of(t, "a", "pods 100.96.0.0/11"),
		of(t, "a", "pods 100.96.1.0/24"),
		of(t, "b", "pods 10.244.0.0/16"),
		of(t, "a", "nodes 100.0.0.0/8 100.1.0.1"),
		of(t, "a", "nodes 100.100.0.1/32 100.100.0.1"),
		of(t, "", "network 100.64.0.0/10"),
		of(t, "b", "network 100.64.0.0/10"),
		of(t, "b", "planned 100.64.0.0/16"),
	}
	var got []string
	for _, r := range InSharedSpace(all) {
		got = append(got, r.Prefix.String())
	}
	if want := "[100.64.0.0/13 100.96.0.0/11 100.100.0.1/32]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestSort(t *testing.T) {
	all := []Range{
		of(
			t,
			"b",
			"Services 10.0.0.0/16",
		),
		of(t, "a", "nodes 10.0.0.0/16"),
		of(t, "a", "Services 10.2.0.0/16"),
		of(t, "a", "Services 10.1.0.0/16"),
	}
	Sort(all)
	var got []string
	for _, r := range all {
		got = append(got, r.Cluster+" "+r.Source)
	}
	if want := "[a Services 10.1.0.0/16 a Services 10.2.0.0/16 a nodes 10.0.0.0/16 b Services 10.0.0.0/16]"; fmt.Sprint(got) != want {
		t.Errorf("got %v", got)
	}
}
