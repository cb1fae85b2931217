package cidr

import (
	"errors"
	"net/netip"
	"testing"
)

func TestParse(t *testing.T) {
	if p, err := Parse("172.24.0.0/16"); err != nil || p.String() != "172.24.0.0/16" {
		t.Errorf("Parse = %v, %v", p, err)
	}
	var hostBits *HostBitsError
	if _, err := Parse("172.24.1.0/16"); !errors.As(err, &hostBits) {
		t.Errorf("host bits: got %v", err)
	}
	for _, s := range []string{"", "172.24.0.0", "172.24.0.0/33", "::/129", "cat"} {
		if _, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) succeeded", s)
		}
	}
}

func TestBoundsAndSize(t *testing.T) {
	for _, tt := range []struct {
		prefix, first, last string
		size                int
	}{
		{"10.0.0.0/24", "10.0.0.1", "10.0.0.254", 254},
		{"10.0.0.0/30", "10.0.0.1", "10.0.0.2", 2},
		{"fd00::/112", "fd00::1", "fd00::ffff", 65535},
		{"fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:ffff", 1 << 20},
	} {
		p := netip.MustParsePrefix(tt.prefix)
		first, last := Bounds(p)
		if first.String() != tt.first || last.String() != tt.last {
			t.Errorf("Bounds(%s) = %s, %s", p, first, last)
		}
		if got := Size([]netip.Prefix{p}, 1<<20); got != tt.size {
			t.Errorf("Size(%s) = %d, want %d", p, got, tt.size)
		}
	}
}

func TestPoolKeep(t *testing.T) {
	from := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	for _, tt := range []struct{ to, old, want string }{
		{"172.24.0.0/16", "10.96.3.7", "172.24.3.7"},
		{"172.24.0.0/12", "10.96.3.7", "172.16.3.7"},
		{"172.24.0.0/24", "10.96.3.7", ""},           // does not fit
		{"172.24.0.0/24", "10.96.0.255", ""},         // would be the broadcast address
		{"172.24.0.0/16", "10.97.0.1", ""},           // not from there
		{"172.24.0.0/16", "10.96.0.9", ""},           // taken
		{"172.24.0.0/16", "10.96.0.8", "172.24.0.8"}, // beside the taken one
	} {
		to := netip.MustParsePrefix(tt.to)
		pool := NewPool([]netip.Prefix{to.Masked()}, []netip.Addr{netip.MustParseAddr("172.24.0.9")})
		got, ok := pool.TakeSameOffset(netip.MustParseAddr(tt.old), from)
		if ok != (tt.want != "") || (ok && got.String() != tt.want) {
			t.Errorf("Keep(%s in %s) = %v, %v; want %q", tt.old, tt.to, got, ok, tt.want)
		}
	}
}

func TestPoolFillsFromBothEndsAndEnds(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29"), netip.MustParsePrefix("10.1.0.0/30")}
	pool := NewPool(ranges, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	got := map[string]bool{}
	for i := range 7 {
		next := pool.Lowest
		if i%2 == 1 {
			next = pool.Highest
		}
		a, err := next()
		if err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		if got[a.String()] || !Contains(ranges, a) {
			t.Fatalf("chose %s twice or outside", a)
		}
		got[a.String()] = true
	}
	var full *FullError
	if _, err := pool.Lowest(); !errors.As(err, &full) {
		t.Errorf("Lowest on a full pool: %v", err)
	}
	if _, err := pool.Highest(); !errors.As(err, &full) {
		t.Errorf("Highest on a full pool: %v", err)
	}
}
