package lists_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/replumb/replumb/internal/engine/lists"
)

func TestJoin(t *testing.T) {
	all := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1")}
	if got := lists.Join(all, ", "); got != "10.0.0.1, ::1" {
		t.Errorf("joined %q", got)
	}
	if got := lists.Strings[netip.Addr](nil); got != nil {
		t.Errorf("of none %q", got)
	}
}

func TestFirst(t *testing.T) {
	all := []string{"a", "b", "c"}
	for n, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		if got := lists.FirstN(all, n); got != want {
			t.Errorf("first %d: %q, want %q", n, got, want)
		}
	}
	if got := lists.Limit(all, 2); !slices.Equal(got, []string{"a", "b", "and 1 more"}) || all[2] != "c" {
		t.Errorf("limited to 2: %q, of %q", got, all)
	}
	if got := lists.Limit(all, 3); !slices.Equal(got, all) {
		t.Errorf("limited to 3: %q", got)
	}
}
