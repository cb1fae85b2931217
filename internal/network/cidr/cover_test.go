package cidr

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestCover(t *testing.T) {
	within := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/108")}
	for _, tt := range []struct {
		addresses []string
		want      string
	}{
		{nil, "[]"},
		{[]string{"10.96.0.5"}, "[10.96.0.4/30]"},
		{[]string{"10.96.0.5", "10.96.0.6"}, "[10.96.0.4/30]"},
		{[]string{"10.96.0.4"}, "[10.96.0.0/29]"}, // the first of a /30
		{[]string{"10.96.0.8"}, "[10.96.0.0/28]"}, // the first of a /30 and of a /29
		{[]string{"10.96.0.7"}, "[10.96.0.0/28]"}, // the last of a /30 and of a /29
		{[]string{"10.96.0.5", "10.96.0.9"}, "[10.96.0.4/30 10.96.0.8/30]"},
		{[]string{"10.96.0.1", "10.96.0.5"}, "[10.96.0.0/29]"}, // neighbours become one
		{[]string{"10.96.128.0"}, "[10.96.0.0/16]"},
		{[]string{"10.50.0.1"}, "[]"},
		{[]string{"10.96.0.5", "fd00::5"}, "[10.96.0.4/30 fd00::4/126]"},
	} {
		var addresses []netip.Addr
		for _, a := range tt.addresses {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		got := Cover(addresses, within)
		if fmt.Sprint(got) != tt.want {
			t.Errorf("Cover(%v) = %v, want %s", tt.addresses, got, tt.want)
		}
	}
}

// TestCoverHoldsEveryAddress tries every pair of a range: each must lie inside a part of the cover,
// not at its edge.
func TestCoverHoldsEveryAddress(t *testing.T) {
	within := netip.MustParsePrefix("10.96.0.0/26")
	first, last := Bounds(within)
	for a := first; a != last.Next(); a = a.Next() {
		for b := a; b != last.Next(); b = b.Next() {
			cover := Cover([]netip.Addr{a, b}, []netip.Prefix{within})
			for _, x := range []netip.Addr{a, b} {
				held := false
				for _, p := range cover {
					held = held || (p.Contains(x) && inside(p, x))
				}
				if !held {
					t.Fatalf("%s is not inside any of %v", x, cover)
				}
			}
		}
	}
}
