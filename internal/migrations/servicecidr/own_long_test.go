//go:build apiserver && long

package servicecidr

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestOwnAddressKilledAfterEveryWrite: a run that goes on, or goes back, leaves nothing half done.
func TestOwnAddressKilledAfterEveryWrite(t *testing.T) {
	for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapExternalIP, v1alpha1.OverlapLoadBalancer} {
		t.Run(string(form), func(t *testing.T) {
			var was *corev1.Service
			begin := func() *fixture {
				f := setup(t, allByEtcd, overlapBy(form))
				was = f.service("plain", at("10.96.3.1"))
				return f
			}
			apply := func(f *fixture) error {
				_, err := f.job.Apply(t.Context(), f.runner)
				return err
			}
			everyWrite(t, 10, begin, apply, func(f *fixture, n int) {
				if n%2 == 1 {
					f.apply()
					f.keeps(was, f.get("plain"), form)
				} else if f.again() != nil {
					f.must(f.rollback())
					f.sameButAddress(was, f.get("plain"))
					f.nothingLeft()
				}
			})
		})
	}
}
