//go:build apiserver && long

package servicecidr

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// TestBitmapUpgraded gives the API server ServiceCIDRs in the middle of a migration, as an upgrade
// to 1.33 does. Every command is refused, and changes nothing. With the API server as it was,
// rollback goes through.
func TestBitmapUpgraded(t *testing.T) {
	f := setupFlagged(t)
	if f == nil {
		return
	}
	f.eachKind()
	f.apply()
	f.moved()
	const gate = "MultiCIDRServiceAllocator"
	f.serve(gate+"=true", "networking.k8s.io/v1beta1=true")
	upgraded, err := cluster.Connect(server.Config)
	f.must(err)
	before := f.get("cart")
	f.through(upgraded, func() {
		for name, command := range map[string]func() error{
			"apply":    func() error { _, err := f.job.Apply(t.Context(), f.runner); return err },
			"rollback": f.rollback,
			"finish":   f.finish,
		} {
			err := command()
			if code, _ := fault.ExitCode(err); !errors.As(err, new(*UpgradedError)) || code != fault.ExitBlocked {
				t.Errorf("%s, with reservations of before: exit code %d, %v", name, code, err)
			}
		}
	})
	if now := f.get("cart"); !equality.Semantic.DeepEqual(before, now) {
		t.Errorf("cart was\n%+v\nis\n%+v", before, now)
	}
	f.serve(gate+"=false", "networking.k8s.io/v1beta1=false")
	f.must(f.rollback())
	f.asItWas()
}

// serve restarts the API server with a feature gate and APIs.
func (f *flagged) serve(gate, apis string) {
	f.Helper()
	f.must(server.Restart(func() error {
		server.SetFlag("feature-gates", gate)
		server.SetFlag("runtime-config", apis)
		return nil
	}))
	f.eventually("an answer", func() error { _, err := server.ServerVersion(f.Context()); return err })
}
