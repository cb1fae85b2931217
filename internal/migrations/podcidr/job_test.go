//go:build apiserver

package podcidr

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

func TestThereAndFinished(t *testing.T) {
	f := setup(t)
	f.populate()
	f.Must(f.apply())
	f.allIn(newRange)
	st := f.again()
	if st.Phase != v1alpha1.PhaseMoved || st.Counts.Moved != 7 || st.Counts.Total != 7 || st.LastError != "" {
		t.Errorf("status after apply: %+v", st)
	}
	f.Must(f.apply()) // a second time changes nothing
	if n := len(f.ready("web")); n != 3 {
		t.Errorf("web has %d pods", n)
	}
	f.Must(f.finish())
	f.allIn(newRange)
	f.onlyPool(newRange)
	if st := f.again(); st.Phase != v1alpha1.PhaseFinished || !st.PointOfNoReturnPassed {
		t.Errorf("status after finish: %+v", st)
	}
	err := server.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	f.Must(f.finish()) // a second time changes nothing
	f.Fails(f.apply(), "is finished")
	f.Fails(f.rollback(), "point of no return")
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
