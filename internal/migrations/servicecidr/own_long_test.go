//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/testing/crash"
)

// TestOwnAddressKilledAfterEveryWrite: a run that goes on, or goes back, leaves nothing half done,
// wherever the one before it was cut off.
func TestOwnAddressKilledAfterEveryWrite(t *testing.T) {
	for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapExternalIP, v1alpha1.OverlapLoadBalancer} {
		var was *corev1.Service
		for name, then := range map[string]func(f *fixture, n int){
			"goes on": func(f *fixture, _ int) {
				f.apply()
				f.keeps(was, f.get("plain"), form)
			},
			"goes back": func(f *fixture, _ int) {
				if f.again() != nil {
					f.must(f.rollback())
					f.sameButAddress(was, f.get("plain"))
					f.nothingLeft()
				}
			},
		} {
			t.Run(string(form)+" "+name, func(t *testing.T) {
				begin := func() *fixture {
					f := setup(t, allByEtcd, overlapBy(form), func(m *v1alpha1.Migration) {
						m.Spec.ServiceCIDR.Strategies.LoadBalancer = v1alpha1.StrategyOfPin // its own type for the migration is none
					})
					was = f.service("plain", at("10.96.3.1"))
					return f
				}
				apply := func(f *fixture) error {
					_, err := f.job.Apply(t.Context(), f.runner)
					return err
				}
				everyWrite(t, 10, begin, apply, then)
			})
		}
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

// repairEvery is how often API servers look at all Services and IPAddresses (RepairServicesInterval
// in k8s.io/kubernetes pkg/controlplane/apiserver/config.go).
const repairEvery = 3 * time.Minute

// TestRepairFindsNothing: what etcd has reserved, given and taken outlasts a whole round of the
// controller that repairs IPAddresses, of Services that have moved and of one that is about to. It
// deletes the control, which no Service has.
func TestRepairFindsNothing(t *testing.T) {
	f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapExternalIP))
	all := f.keepers()
	f.apply()
	all = append(all, f.service("late", at("10.96.3.9")))
	f.job.Deps.Store = &doomed{Store: &exchange.Etcd{Spec: f.job.Spec.Store}, at: 2} // before it is given
	if _, err := f.job.Apply(t.Context(), f.runner); !errors.Is(err, crash.ErrKilled) {
		t.Fatalf("the run ended with %v", err)
	}
	f.job.Deps.Store = nil
	was := f.versionsOfAddresses()
	stray := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "172.24.9.9", Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: services.Allocator,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: "gone"}},
	}
	f.must(server.Create(t.Context(), stray))
	<-time.After(repairEvery + 15*time.Second) // nothing tells that a round is over

	if is := f.versionsOfAddresses(); !maps.Equal(is, was) {
		t.Errorf("addresses are\n%v\nand were\n%v", is, was)
	}
	for _, e := range f.repaired(all) {
		t.Errorf("repaired: %s", e)
	}
	f.again()
	f.apply()
	for _, was := range all {
		f.moved(was, f.get(was.Name))
	}
	f.must(f.finish())
	f.nothingLeft()
}

// versionsOfAddresses are those of all addresses, by name.
func (f *fixture) versionsOfAddresses() map[string]string {
	f.Helper()
	all := &networkingv1.IPAddressList{}
	f.must(server.List(f.Context(), all))
	versions := map[string]string{}
	for _, ip := range all.Items {
		versions[ip.Name] = string(ip.UID) + " " + ip.ResourceVersion
	}
	return versions
}
