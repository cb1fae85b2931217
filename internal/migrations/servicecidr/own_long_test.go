//go:build apiserver && long

package servicecidr

import (
	"context"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/admission"
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

// arrivingWithExternalIP tries what patch B does.
func arrivingWithExternalIP(svc *corev1.Service) trying {
	return func(ctx context.Context) (*admission.Refusal, error) {
		return admission.Patch(ctx, server, svc.DeepCopy(), client.RawPatch(types.MergePatchType,
			[]byte(`{"spec":{"type":"ClusterIP","externalName":null,"externalIPs":["192.0.2.9"]}}`)))
	}
}

// TestRefusedOnTheWay: a policy that a trial does not meet refuses, in the middle of a hop, that
// the Service keeps its old address itself. It arrives all the same, with the address left to its
// bridge, and goes back and to the end like any other.
func TestRefusedOnTheWay(t *testing.T) {
	arrive := func(t *testing.T) (*fixture, *corev1.Service) {
		f := setup(t, overlapBy(v1alpha1.OverlapAuto))
		was := f.service("plain", at("10.96.3.1"))
		f.refused(arrivingWithExternalIP(f.service("probe", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.SessionAffinity = corev1.ServiceTypeExternalName, "example.com", ""
		})), func() {
			f.policy("no-external-ips", "oldObject.spec.type != 'ExternalName' || !has(object.spec.externalIPs) || size(object.spec.externalIPs) == 0",
				admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"services"}},
				})
		})
		f.apply()
		is := f.get("plain")
		f.sameButAddress(was, is)
		f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
		f.apply() // finds nothing to do
		f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
		return f, was
	}
	t.Run("and back", func(t *testing.T) {
		f, was := arrive(t)
		f.must(f.rollback())
		f.returned(was)
		f.nothingLeft()
	})
	t.Run("and to the end", func(t *testing.T) {
		f, was := arrive(t)
		f.must(f.finish())
		f.sameButAddress(was, f.get("plain"))
		f.nothingLeft()
	})
}
