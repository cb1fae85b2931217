package ranges

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"
)

func setOf(t testing.TB, prefixes ...string) *netipx.IPSet {
	t.Helper()
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(netip.MustParsePrefix(p))
	}
	set, err := b.IPSet()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestProposePrivate(t *testing.T) {
	for _, tt := range []struct {
		name  string
		taken []string
		bits  int
		count int
		want  string
	}{
		{"from above", nil, 16, 3, "[10.255.0.0/16 10.254.0.0/16 10.253.0.0/16]"},
		{"beside what is taken", []string{"10.255.7.0/24", "10.254.0.0/16"}, 16, 2, "[10.253.0.0/16 10.252.0.0/16]"},
		{"in a gap", []string{"10.255.7.0/24"}, 24, 1, "[10.255.255.0/24]"},
		{"in another block", []string{"10.0.0.0/8"}, 16, 2, "[172.30.0.0/16 172.29.0.0/16]"},
		{"in the last one", []string{"10.0.0.0/8", "172.16.0.0/12"}, 17, 3, "[192.168.128.0/17 192.168.0.0/17]"},
		{
			"what others take, last",
			[]string{"10.0.0.0/8", "172.16.0.0/16", "172.18.0.0/15", "172.20.0.0/14", "172.24.0.0/13", "192.168.0.0/16"},
			16, 3, "[172.17.0.0/16]",
		},
		{"none", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}, 24, 3, "[]"},
		{"too wide", []string{"10.1.0.0/24", "10.200.0.0/24"}, 9, 1, "[]"},
		{"half of all", []string{"10.1.0.0/24"}, 9, 2, "[10.128.0.0/9]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Propose(setOf(t, tt.taken...), []Wish{{Bits: tt.bits}}, tt.count)
			if fmt.Sprint(got[0].Free) != tt.want {
				t.Errorf("got %v, want %s", got[0].Free, tt.want)
			}
		})
	}
}

// TestProposeInTurn: where little is left, each has some of it.
func TestProposeInTurn(t *testing.T) {
	taken := setOf(t, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/17")
	got := Propose(taken, []Wish{{Cluster: "a", Bits: 18}, {Cluster: "b", Bits: 18}}, 3)
	if fmt.Sprint(got[0].Free, got[1].Free) != "[192.168.192.0/18] [192.168.128.0/18]" {
		t.Errorf("got %v", got)
	}
}

// TestProposeLocal: ranges of IPv6 are the same whenever they are proposed, and others for another
// cluster or use.
func TestProposeLocal(t *testing.T) {
	nothing := setOf(t)
	wishes := []Wish{
		{Use: Services, Bits: 108, IPv6: true, Seed: "a"},
		{Use: Pods, Bits: 56, IPv6: true, Seed: "a"},
		{Use: Pods, Bits: 56, IPv6: true, Seed: "b"},
		{Use: Pods, Bits: 40, IPv6: true, Seed: "b"},
	}
	got, again := Propose(nothing, wishes, 3), Propose(nothing, wishes, 3)
	if fmt.Sprint(got) != fmt.Sprint(again) {
		t.Errorf("%v, and then %v", got, again)
	}
	disjoint(t, nothing, got, 3)
	first := got[0].Free[0]
	for _, p := range Propose(setOf(t, first.String()), wishes[:1], 3)[0].Free {
		if p.Overlaps(first) {
			t.Errorf("%s is taken, and %s is proposed", first, p)
		}
	}
	if all := Propose(setOf(t, "fd00::/8"), wishes, 1); len(all[0].Free) > 0 {
		t.Errorf("all is taken, and %v is proposed", all)
	}
}

// disjoint holds proposals to what they promise.
func disjoint(t testing.TB, taken *netipx.IPSet, all []Proposal, count int) {
	t.Helper()
	for _, p := range all {
		if p.IPv6 && len(p.Free) != count && !taken.OverlapsPrefix(netip.MustParsePrefix("fd00::/8")) {
			t.Errorf("%d ranges for %+v, want %d", len(p.Free), p.Wish, count)
		}
		for _, free := range p.Free {
			switch {
			case free != free.Masked() || free.Bits() != p.Bits || free.Addr().Is6() != p.IPv6:
				t.Errorf("%s for %+v", free, p.Wish)
			case taken.OverlapsPrefix(free):
				t.Errorf("%s is taken", free)
			case p.IPv6 && !netip.MustParsePrefix("fd00::/8").Contains(free.Addr()), !p.IPv6 && !free.Addr().IsPrivate():
				t.Errorf("%s is not private", free)
			}
			taken = with(taken, free)
		}
	}
}

// FuzzPropose: whatever is taken, proposals are apart from it and from each other, and there are
// less than asked for only if no range of the size is left.
func FuzzPropose(f *testing.F) {
	f.Add([]byte{10, 0, 8, 172, 16, 12, 192, 168, 17}, byte(16), byte(24), byte(3))
	f.Add([]byte{10, 96, 12, 10, 244, 16}, byte(12), byte(16), byte(5))
	f.Add([]byte{}, byte(9), byte(30), byte(1))
	f.Fuzz(func(t *testing.T, in []byte, first, second, n byte) {
		var b netipx.IPSetBuilder
		for ; len(in) >= 3; in = in[3:] {
			b.AddPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{in[0], in[1], 0, 0}), int(in[2])%33).Masked())
		}
		taken, err := b.IPSet()
		if err != nil {
			t.Fatal(err)
		}
		size := func(b byte) int { return widest4 + int(b)%(narrowest4-widest4+1) }
		count := int(n)%5 + 1
		got := Propose(taken, []Wish{
			{Cluster: "a", Use: Services, Bits: size(first)},
			{Cluster: "b", Use: Pods, Bits: size(second)},
			{Cluster: "b", Use: Pods, Bits: 56, IPv6: true, Seed: string(in)},
		}, count)
		disjoint(t, taken, got, count)
		for _, p := range got {
			for _, free := range p.Free {
				taken = with(taken, free)
			}
		}
		for _, p := range got {
			if p.IPv6 || len(p.Free) == count {
				continue
			}
			for _, block := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} {
				if left, ok := highest(netip.MustParsePrefix(block), taken, p.Bits); ok {
					t.Errorf("%s is left, and not proposed for %+v: %v", left, p.Wish, p.Free)
				}
			}
		}
	})
}

func TestSize(t *testing.T) {
	node := func(text string) Range {
		r := of(t, "a", "pods "+text)
		r.PerNode = true
		return r
	}
	for _, tt := range []struct {
		name string
		all  []Range
		use  Use
		ipv6 bool
		want int
	}{
		{"the widest", []Range{of(t, "a", "Services 10.96.0.0/20"), of(t, "a", "Services 10.97.0.0/16")}, Services, false, 16},
		{"of its use", []Range{of(t, "a", "Services 10.96.0.0/16")}, Pods, false, 0},
		{"of its family", []Range{of(t, "a", "Services 10.96.0.0/16"), of(t, "a", "Services fd00::/108")}, Services, true, 108},
		{"nodes' alone", []Range{node("10.244.0.0/23"), node("10.244.7.0/24")}, Pods, false, 22},
		{"one node's", []Range{node("10.244.0.0/24")}, Pods, false, 24},
		{"nodes' of IPv6", []Range{node("fd00::/64"), node("fd00:0:0:1::/64"), node("fd00:0:0:2::/64")}, Pods, true, 62},
		{"nodes' within", []Range{of(t, "a", "pods 10.244.0.0/16"), node("10.244.0.0/23")}, Pods, false, 16},
		{"addresses", []Range{of(t, "a", "pods 10.0.0.0/24 10.0.0.9")}, Pods, false, 0},
	} {
		if got := Size(tt.all, tt.use, tt.ipv6); got != tt.want {
			t.Errorf("%s: /%d, want /%d", tt.name, got, tt.want)
		}
	}
	for bits, want := range map[int]bool{8: false, 9: true, 30: true, 31: false, 32: false, 33: true, 126: true, 127: false, -1: false} {
		if ValidSize(bits) != want {
			t.Errorf("/%d: %t", bits, !want)
		}
	}
}

// TestTaken: the network of a machine is wider than its address.
func TestTaken(t *testing.T) {
	set := Taken(
		[]Range{
			of(t, "a", "nodes 192.0.2.1/32 192.0.2.1"),
			of(t, "a", "nodes 2001:db8::1/128 2001:db8::1"),
			of(t, "", "network 10.0.0.0/8"),
		},
	)
	if got := fmt.Sprint(set.Prefixes()); got != "[10.0.0.0/8 192.0.2.0/24 2001:db8::/64]" {
		t.Errorf("got %s", got)
	}
}
