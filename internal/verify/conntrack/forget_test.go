package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestForget deletes what rests and leads to a server, and nothing else.
func TestForget(t *testing.T) {
	entry := func(protocol uint8, to, server string, left uint32) leftover {
		return leftover{flow: flow{endpoints: pair(protocol, "10.244.1.7:40000", to), left: left}, server: netip.MustParseAddrPort(server)}
	}
	all := map[string]leftover{
		"rests":       entry(udp, "10.96.0.10:53", "10.244.1.9:53", 10),
		"busy":        entry(udp, "10.96.0.10:53", "10.244.1.9:53", 28),
		"asked again": entry(udp, "10.96.0.10:53", "10.244.1.9:53", 10),
		"gone":        entry(udp, "10.96.0.10:53", "10.244.1.9:53", 10),
		"of another":  entry(udp, "10.96.0.10:53", "10.244.1.8:53", 10),
		"direct":      entry(udp, "10.244.1.9:53", "10.244.1.9:53", 10),
		"of TCP":      entry(tcp, "10.96.0.10:53", "10.244.1.9:53", 10),
	}
	var removed []string
	table := &Table{timeouts: standard, entries: entries{
		list: func(each func(leftover)) error {
			for name, e := range all {
				e.key = []byte(name)
				each(e)
			}
			return nil
		},
		get: func(key []byte) (leftover, bool, error) {
			e := all[string(key)]
			if string(key) == "asked again" {
				e.left = 30
			}
			return e, string(key) != "gone", nil
		},
		remove: func(key []byte) error { removed = append(removed, string(key)); return nil },
	}}
	servers := []netip.Addr{netip.MustParseAddr("10.244.1.9")}
	left, err := table.Forget(servers, 6*time.Second)
	if err != nil || left != 2 || !slices.Equal(removed, []string{"rests"}) {
		t.Errorf("removed %q, %d are left, %v", removed, left, err)
	}
	removed = nil
	left, err = table.Forget(servers, 0)
	slices.Sort(removed)
	if err != nil || left != 0 || !slices.Equal(removed, []string{"asked again", "busy", "rests"}) {
		t.Errorf("without mercy: removed %q, %d are left, %v", removed, left, err)
	}
	table.entries.list = func(func(leftover)) error { return errors.New("interrupted") }
	if _, err := table.Forget(servers, 0); err == nil {
		t.Error("a look that failed counts as one that found nothing")
	}
}
