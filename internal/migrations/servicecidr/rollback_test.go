//go:build apiserver && long

package servicecidr

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// asBefore fails if anything of the cluster is other than it was before the migration.
func (f *fixture) asBefore(was []*corev1.Service) {
	f.Helper()
	for _, w := range was {
		is := f.get(w.Name)
		if !equality.Semantic.DeepEqual(w.Spec, is.Spec) || w.UID != is.UID || len(is.Annotations)+len(is.Labels) > 0 {
			f.Errorf("%s was\n%+v\nis\n%+v\n%v", w.Name, w.Spec, is.Spec, is.Annotations)
		}
	}
	if got, want := f.ranges(), "10.96.0.0/16 "+oldRange; got != want {
		f.Errorf("ranges are %s, want %s", got, want)
	}
	f.nothingLeft()
	if phase := f.again().Status.Phase; phase != v1alpha1.PhaseRolledBack {
		f.Errorf("phase %s", phase)
	}
}

// TestRollbackAfterEveryPhase stops apply after each of its phases, and has rollback restore
// exactly what was there. From the phase that retires the range on, that includes opening it again.
func TestRollbackAfterEveryPhase(t *testing.T) {
	f, was := office(t)
	for _, phase := range ApplyPhases() {
		t.Run(phase, func(t *testing.T) {
			f.T = t
			f.job.Until = phase
			_, err := f.job.Apply(t.Context(), f.runner)
			f.must(err)
			if f.again() == nil { // after phase check nothing has been written
				if phase != "check" {
					t.Fatal("there is no Migration")
				}
				return
			}
			retired := phase == "repoint" || phase == "tidy"
			if got := strings.Contains(f.ranges(), oldRange); got == retired {
				t.Errorf("after phase %s the ranges are %s", phase, f.ranges())
			}
			f.job.Until = ""
			f.must(f.rollback())
			f.asBefore(was)
		})
	}
}

// TestThereAndBackThreeTimes goes through a retired and reopened range each time.
func TestThereAndBackThreeTimes(t *testing.T) {
	f, was := office(t)
	for range 3 {
		f.apply()
		if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16! 172.31.3.8/30!"; got != want {
			t.Errorf("ranges are %s, want %s", got, want)
		}
		f.must(f.rollback())
		f.asBefore(was)
	}
}

// TestRollbackReopensARangeThatIsGoing: a range whose deletion was asked for, but that an address
// still holds, gives out no addresses any more, and its Services could not return.
func TestRollbackReopensARangeThatIsGoing(t *testing.T) {
	f, was := office(t)
	f.job.Until = "move"
	f.apply()
	f.job.Until = ""
	late := f.service("late", at("172.31.3.40"))
	f.must(server.Delete(t.Context(), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "old"}}))
	if err := server.Get(t.Context(), client.ObjectKey{Name: "old"}, &networkingv1.ServiceCIDR{}); err != nil {
		t.Fatalf("the range does not wait for %s: %v", late.Name, err)
	}
	f.must(f.rollback())
	f.asBefore(append(was, late))
}
