//go:build apiserver

package podcidr

import (
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// populate makes one workload of each kind.
func (f *fixture) populate() {
	f.Helper()
	f.Deployment("web", 3)
	f.StatefulSet("db", 2)
	f.DaemonSet("log", 2)
	f.Budget("web", 2)
}

func (f *fixture) allIn(cidr string) {
	f.Helper()
	f.in(cidr, "web", 3)
	f.in(cidr, "db", 2)
	f.in(cidr, "log", 2)
}

func TestThereAndBackAndThere(t *testing.T) {
	f := setup(t)
	f.populate()
	f.Must(f.apply())
	f.Must(f.rollback())
	f.allIn(oldRange)
	f.onlyPool(oldRange)
	if st := f.again(); st.Phase != v1alpha1.PhaseRolledBack {
		t.Errorf("status: %+v", st)
	}
	f.Fails(f.finish(), "rolled back")
	f.Must(f.apply())
	f.allIn(newRange)
	f.Must(f.finish())
	f.onlyPool(newRange)
}
