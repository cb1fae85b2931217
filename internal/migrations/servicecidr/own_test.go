//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// allByEtcd has all Services move by etcd.
func allByEtcd(m *v1alpha1.Migration) {
	byEtcd(m)
	m.Spec.ServiceCIDR.Strategies.ClusterIP = v1alpha1.StrategyOfEtcd
}

// overlapBy has them keep their old addresses in a form.
func overlapBy(form v1alpha1.OverlapForm) func(*v1alpha1.Migration) {
	return func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Overlap = form }
}

// itself is a way in which Services move and keep their old address themselves.
type itself struct {
	name   string
	change func(*v1alpha1.Migration)
	form   v1alpha1.OverlapForm
}

func waysItself() []itself {
	byHop := func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR.Overlap, m.Spec.ServiceCIDR.Strategies.NodePort = v1alpha1.OverlapAuto, v1alpha1.StrategyOfHop
	}
	all := []itself{{"hop", byHop, v1alpha1.OverlapExternalIP}, {"hop over externalIPs", func(m *v1alpha1.Migration) {
		byHop(m)
		m.Spec.ServiceCIDR.Bridge = v1alpha1.BridgeExternalIPs
	}, v1alpha1.OverlapExternalIP}}
	for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapExternalIP, v1alpha1.OverlapLoadBalancer} {
		all = append(all, itself{"etcd " + string(form), func(m *v1alpha1.Migration) {
			allByEtcd(m)
			overlapBy(form)(m)
		}, form})
	}
	return all
}

// keepers are Services that can keep their old address themselves.
func (f *fixture) keepers() []*corev1.Service {
	f.Helper()
	local := corev1.ServiceInternalTrafficPolicyLocal
	return []*corev1.Service{
		f.service("plain", at("10.96.3.1")),
		f.service("near", at("10.96.3.2"), func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = &local
			s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyEtcd}
		}),
		f.service("ported", at("10.96.3.3"), func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		}),
		f.service("unselected", at("10.96.3.4"), func(s *corev1.Service) { s.Spec.Selector = nil }),
	}
}

// keeps looks at a Service that has moved and keeps its old address itself.
func (f *fixture) keeps(was, is *corev1.Service, form v1alpha1.OverlapForm) {
	f.Helper()
	if have, _ := ownaddress.FormOf(is, netip.MustParseAddr(was.Spec.ClusterIP)); have != form {
		f.Errorf("%s keeps %s as %q, want %s", was.Name, was.Spec.ClusterIP, have, form)
	}
	if got, want := f.heldFor(was.Spec.ClusterIP), "shop/"+bridge.Name(was.Name, was.UID); got != want {
		f.Errorf("old address %s is held for %q, want %q", was.Spec.ClusterIP, got, want)
	}
	own := &networkingv1.IPAddress{}
	f.must(server.Get(f.Context(), types.NamespacedName{Name: is.Spec.ClusterIP}, own))
	if got, want := bridge.ParentOf(own), "services shop/"+was.Name; got != want || own.Labels[v1alpha1.LabelRole] != "" {
		f.Errorf("address %s of %s belongs to %q with %v, want %q", is.Spec.ClusterIP, was.Name, got, own.Labels, want)
	}
	err := server.Get(f.Context(), types.NamespacedName{Namespace: "shop", Name: bridge.Name(was.Name, was.UID)}, &corev1.Service{})
	if !apierrors.IsNotFound(err) {
		f.Errorf("%s has a bridge as well (%v)", was.Name, err)
	}
}

// givenOnce fails if an API server has made an address anew that etcd gave a Service.
func (f *fixture) givenOnce(is *corev1.Service) {
	f.Helper()
	own := &networkingv1.IPAddress{}
	f.must(server.Get(f.Context(), types.NamespacedName{Name: is.Spec.ClusterIP}, own))
	if by, _, _ := f.job.Spec.Strategies.Choose(is); by == v1alpha1.StrategyOfEtcd && own.ManagedFields[0].Manager != v1alpha1.FieldManager {
		f.Errorf("address %s of %s was made anew by %s", is.Spec.ClusterIP, is.Name, own.ManagedFields[0].Manager)
	}
}

// repaired are the events of the controller that repairs IPAddresses, about some Services. It may
// see one that is just created before its IPAddress, and so repairs first addresses of any.
func (f *fixture) repaired(of []*corev1.Service) (all []string) {
	f.Helper()
	events := &corev1.EventList{}
	f.must(server.List(f.Context(), events, client.InNamespace("shop")))
	for _, e := range events.Items {
		if e.Reason == "ClusterIPNotAllocated" && strings.Contains(e.Message, " 10.96.") {
			continue
		}
		mine := slices.ContainsFunc(of, func(svc *corev1.Service) bool { return svc.UID == e.InvolvedObject.UID })
		if mine && (strings.Contains(e.Reason, "ClusterIP") || strings.Contains(e.Reason, "IPAddress")) {
			all = append(all, e.InvolvedObject.Name+": "+e.Reason+" "+e.Message)
		}
	}
	return all
}

// TestOwnAddress moves Services that keep their old address themselves, in either form: there,
// back, there again, with an edit of their owner's, and to the end of finish. No bridge is left by
// apply, and the controller that repairs IPAddresses finds nothing to repair.
func TestOwnAddress(t *testing.T) {
	for _, way := range waysItself() {
		t.Run(way.name, func(t *testing.T) {
			form := way.form
			f := setup(t, byEtcd, way.change)
			all := f.keepers()
			f.apply()
			for _, was := range all {
				f.moved(was, f.get(was.Name))
				f.keeps(was, f.get(was.Name), form)
				f.givenOnce(f.get(was.Name))
			}
			f.apply() // finds nothing to do
			f.must(f.rollback())
			for _, was := range all {
				f.returned(was)
			}
			f.nothingLeft()

			f.again()
			f.apply()
			edited := f.get("plain")
			edited.Spec.Ports[0].Port = 8080
			f.must(server.Update(t.Context(), edited))
			f.must(f.finish())
			for _, was := range all {
				if was.Name == "plain" {
					was.Spec.Ports[0].Port = 8080
				}
				is := f.get(was.Name)
				f.sameButAddress(was, is)
				if len(is.Status.LoadBalancer.Ingress) > 0 || f.owner(was.Spec.ClusterIP) != "" {
					t.Errorf("%s still answers at %v, and its old address belongs to %q",
						was.Name, is.Status.LoadBalancer.Ingress, f.owner(was.Spec.ClusterIP))
				}
			}
			f.nothingLeft()
			if strings.HasPrefix(way.name, "hop") { // the API server gives the addresses itself, and may be behind itself
				return
			}
			for _, e := range f.repaired(all) {
				t.Errorf("repaired: %s", e)
			}
		})
	}
}

// TestOwnAddressIsPutBack: an old address that its owner has taken off is put on again by the next
// apply, and an address of his own stays.
func TestOwnAddressIsPutBack(t *testing.T) {
	f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapExternalIP), func(m *v1alpha1.Migration) { m.Spec.Freeze = v1alpha1.FreezeDisabled })
	was := f.service("plain", at("10.96.3.1"))
	f.apply()
	owned := f.get("plain")
	owned.Spec.ExternalIPs = []string{"192.0.2.7"}
	f.must(server.Update(t.Context(), owned))
	f.apply()
	is := f.get("plain")
	f.keeps(was, is, v1alpha1.OverlapExternalIP)
	if !slices.Contains(is.Spec.ExternalIPs, "192.0.2.7") {
		t.Errorf("the owner's own address is gone: %v", is.Spec.ExternalIPs)
	}
	f.must(f.rollback())
	if is := f.get("plain"); !slices.Equal(is.Spec.ExternalIPs, []string{"192.0.2.7"}) || is.Spec.ClusterIP != "10.96.3.1" {
		t.Errorf("it is at %s with externalIPs %v", is.Spec.ClusterIP, is.Spec.ExternalIPs)
	}
	f.nothingLeft()
}

// TestEmptiedStatus: a Service whose status others have emptied keeps nothing of the type that it
// had for the migration, either way, and the next apply has it answer again.
func TestEmptiedStatus(t *testing.T) {
	for _, way := range []string{"apply", "finish", "rollback"} {
		t.Run(way, func(t *testing.T) {
			f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapLoadBalancer))
			was := f.service("plain", at("10.96.3.1"))
			f.apply()
			emptied := f.get("plain")
			emptied.Status.LoadBalancer.Ingress = nil
			f.must(server.Status().Update(t.Context(), emptied))
			if way == "apply" {
				f.apply()
				f.keeps(was, f.get("plain"), v1alpha1.OverlapLoadBalancer)
				return
			}
			f.must(map[string]func() error{"finish": f.finish, "rollback": f.rollback}[way]())
			f.sameButAddress(was, f.get("plain"))
			f.nothingLeft()
		})
	}
}

// TestLostReservationIsMadeAgain: agents watch an old address, and finish removes it, because it is
// reserved. The next apply sees to it, however the Service keeps the address.
func TestLostReservationIsMadeAgain(t *testing.T) {
	for name, ways := range map[string][]func(*v1alpha1.Migration){
		"by etcd itself":   {allByEtcd, overlapBy(v1alpha1.OverlapExternalIP)},
		"by hop itself":    {overlapBy(v1alpha1.OverlapAuto)},
		"by hop, a bridge": {overlapBy(v1alpha1.OverlapBridge)},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, ways...)
			was := f.service("plain", at("10.96.3.1"))
			f.apply()
			f.must(server.Delete(t.Context(), &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.3.1"}}))
			f.apply()
			if got, want := f.heldFor("10.96.3.1"), "shop/"+bridge.Name(was.Name, was.UID); got != want {
				t.Errorf("old address 10.96.3.1 is held for %q, want %q", got, want)
			}
			f.must(f.finish())
			f.nothingLeft()
		})
	}
}

// TestOwnAddressBesideBridges: a migration that has begun with bridges goes on with those, and what
// has not moved yet keeps its address itself.
func TestOwnAddressBesideBridges(t *testing.T) {
	f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapBridge))
	first := f.service("first", at("10.96.3.1"))
	f.apply()
	f.moved(first, f.get("first"))
	second := f.service("second", at("10.96.3.2"))
	f.again().Spec.ServiceCIDR.Overlap = v1alpha1.OverlapAuto // an earlier version recorded none
	f.must(server.Update(t.Context(), f.job.Migration))
	f.apply()
	f.checkBridge(first, f.get("first"), v1alpha1.BridgeLoadBalancer)
	f.keeps(second, f.get("second"), v1alpha1.OverlapExternalIP)
	f.must(f.rollback())
	for _, was := range []*corev1.Service{first, second} {
		f.sameButAddress(was, f.get(was.Name))
	}
	f.nothingLeft()
}

// takenAway is an etcd whose certificates were taken away when all had moved.
type takenAway struct{ exchange.Store }

func (takenAway) DeleteAddresses(_ context.Context, versions map[string]string) (map[string]string, error) {
	return versions, errors.New("no certificate")
}

// TestFinishWithoutEtcd: what is reserved is given up by the API then, there and on the way back.
func TestFinishWithoutEtcd(t *testing.T) {
	for _, way := range []string{"finish", "rollback"} {
		t.Run(way, func(t *testing.T) {
			f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapExternalIP))
			was := f.service("plain", at("10.96.3.1"))
			f.apply()
			f.job.Deps.Store = takenAway{f.job.store()}
			left, act := "10.96.3.1", f.finish
			if way == "rollback" {
				left, act = "172.24.3.1", f.rollback
			}
			f.must(act())
			f.sameButAddress(was, f.get("plain"))
			if by := f.owner(left); by != "" {
				t.Errorf("address %s belongs to %q", left, by)
			}
			f.nothingLeft()
		})
	}
}

// TestOwnAddressOfATakenTarget: an address that was given to another meanwhile is not taken from
// it.
func TestOwnAddressOfATakenTarget(t *testing.T) {
	f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapExternalIP))
	was := f.service("plain", at("10.96.3.1"))
	f.job.Deps.Store = &rival{Store: f.job.store(), act: func(*corev1.Service) {
		target := &networkingv1.IPAddress{}
		f.must(server.Get(context.Background(), types.NamespacedName{Name: "172.24.3.1"}, target))
		f.must(server.Delete(context.Background(), target))
		f.service("thief", at("172.24.3.1"))
	}}
	f.apply()
	if is := f.get("thief"); is.Spec.ClusterIP != "172.24.3.1" || f.owner("172.24.3.1") != "services shop/thief" {
		t.Errorf("the thief is at %s, which belongs to %q", is.Spec.ClusterIP, f.owner("172.24.3.1"))
	}
	is := f.get("plain")
	if _, answers := ownaddress.FormOf(is, netip.MustParseAddr("172.24.3.1")); answers || is.Spec.ClusterIP == "172.24.3.1" {
		t.Errorf("it answers at the address of another: at %s with %v", is.Spec.ClusterIP, is.Spec.ExternalIPs)
	}
	f.keeps(was, is, v1alpha1.OverlapExternalIP)
}

// TestOwnAddressOfAServiceThatGoes: one that is deleted right before it is written in etcd, and
// made again or not, does not end the run, and nothing is kept for it.
func TestOwnAddressOfAServiceThatGoes(t *testing.T) {
	for name, again := range map[string]bool{"for good": false, "and comes again": true} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapExternalIP))
			goes, stays := f.service("goes", at("10.96.3.1")), f.service("stays", at("10.96.3.2"))
			f.job.Deps.Store = &rival{Store: f.job.store(), act: func(*corev1.Service) {
				f.must(server.Delete(context.Background(), goes.DeepCopy()))
				if again {
					f.service("goes")
				}
			}}
			f.apply()
			f.moved(stays, f.get("stays"))
			f.apply() // moves what was made meanwhile
			f.must(f.finish())
			f.nothingLeft()
		})
	}
}

// TestTypeIsKept: what applies a manifest that says type ClusterIP succeeds with what else it says,
// and the Service keeps its type and both addresses. After finish the manifest holds.
func TestTypeIsKept(t *testing.T) {
	f := setup(t, allByEtcd, overlapBy(v1alpha1.OverlapLoadBalancer))
	manifest := func(port int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"namespace": "shop", "name": "plain"},
			"spec": map[string]any{
				"type": "ClusterIP", "selector": map[string]any{"app": "plain"},
				"ports": []any{map[string]any{"name": "http", "port": port, "protocol": "TCP"}},
			},
		}}
	}
	apply := func(port int64) *corev1.Service {
		t.Helper()
		o := manifest(port)
		f.must(server.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("kustomize-controller"), client.ForceOwnership))
		return f.get("plain")
	}
	was := apply(80)
	f.apply()
	moved := f.get("plain")
	is := apply(8080)
	f.keeps(was, is, v1alpha1.OverlapLoadBalancer)
	if is.Spec.Ports[0].Port != 8080 || is.Spec.ClusterIP != moved.Spec.ClusterIP {
		t.Errorf("it is at %s with %v", is.Spec.ClusterIP, is.Spec.Ports)
	}
	f.must(f.finish())
	if is := apply(8081); is.Spec.Type != corev1.ServiceTypeClusterIP || is.Spec.Ports[0].Port != 8081 {
		t.Errorf("after finish it is of type %s with %v", is.Spec.Type, is.Spec.Ports)
	}
	f.nothingLeft()
	left := &admissionv1.MutatingAdmissionPolicyList{}
	f.must(server.List(t.Context(), left))
	if len(left.Items) > 0 {
		t.Errorf("policy %s is left", left.Items[0].Name)
	}
}
