package masquerade

import (
	"net/netip"
	"strings"
	"testing"
)

func ranges(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestPairs(t *testing.T) {
	for name, tt := range map[string]struct {
		ranges []netip.Prefix
		want   string
	}{
		"two": {
			ranges("10.244.0.0/16", "192.168.0.0/16"),
			"10.244.0.0/16 to 192.168.0.0/16, 192.168.0.0/16 to 10.244.0.0/16",
		},
		"two of each family": {
			ranges("10.244.0.0/16", "fd00:1::/64", "192.168.0.0/16", "fd00:2::/64"),
			"10.244.0.0/16 to 192.168.0.0/16, fd00:1::/64 to fd00:2::/64, 192.168.0.0/16 to 10.244.0.0/16, fd00:2::/64 to fd00:1::/64",
		},
		"a family of one network only": {
			ranges("10.244.0.0/16", "192.168.0.0/16", "fd00:2::/64"),
			"10.244.0.0/16 to 192.168.0.0/16, 192.168.0.0/16 to 10.244.0.0/16",
		},
		"three": {
			ranges("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"),
			"10.1.0.0/16 to 10.2.0.0/16, 10.1.0.0/16 to 10.3.0.0/16, 10.2.0.0/16 to 10.1.0.0/16, 10.2.0.0/16 to 10.3.0.0/16, " +
				"10.3.0.0/16 to 10.1.0.0/16, 10.3.0.0/16 to 10.2.0.0/16",
		},
	} {
		pairs, err := Pairs(tt.ranges)
		if got := joined(pairs); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func joined(pairs []RangePair) string {
	var all []string
	for _, p := range pairs {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}

// TestPairsRefuses what would keep nothing, or is ambiguous.
func TestPairsRefuses(t *testing.T) {
	for name, in := range map[string][]netip.Prefix{
		"none":                 nil,
		"one":                  ranges("10.244.0.0/16"),
		"one of each family":   ranges("10.244.0.0/16", "fd00:1::/64"),
		"the same twice":       ranges("10.244.0.0/16", "10.244.0.0/16"),
		"one in the other":     ranges("10.0.0.0/8", "10.244.0.0/16"),
		"an address in it":     ranges("10.244.0.1/16", "192.168.0.0/16"),
		"IPv4 written as IPv6": ranges("::ffff:10.244.0.0/112", "fd00:2::/64"),
		"no range at all":      {{}, netip.MustParsePrefix("10.244.0.0/16")},
	} {
		if pairs, err := Pairs(in); err == nil {
			t.Errorf("%s gave %v", name, pairs)
		}
	}
}
