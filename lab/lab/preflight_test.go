//go:build root

package lab

import (
	"errors"
	"os"
	"slices"
	"testing"
)

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := Preflight(Topology{Edge: true, CNI: Cilium}); !errors.Is(err, errNotRoot) {
			t.Errorf("without root: %v", err)
		}
		return
	}
	t.Setenv("PATH", t.TempDir()) // a machine with nothing on it
	err := Preflight(Topology{Edge: true, CNI: Cilium})
	missing := (*MissingError)(nil)
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a MissingError", err)
	}
	for _, want := range []string{"runc", "nftables", "conntrack", "haproxy", "clang-19"} {
		if !slices.Contains(missing.Packages, want) {
			t.Errorf("package %s is not among %v", want, missing.Packages)
		}
	}
}
