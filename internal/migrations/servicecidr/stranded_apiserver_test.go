//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/network/bridge"
)

// run runs a command by name.
func (f *fixture) run(command string) error {
	f.Helper()
	f.again()
	switch command {
	case "finish":
		return f.finish()
	case "rollback":
		return f.rollback()
	}
	_, err := f.job.Apply(f.Context(), f.runner)
	return err
}

// asInAHop has its owner make a Service that has moved look as between the patches of a hop.
func (f *fixture) asInAHop(name string) {
	f.Helper()
	svc := f.get(name)
	body := fmt.Sprintf(`{"spec":{"type":"ExternalName","externalName":"%s.shop.svc.cluster.local","externalIPs":null,"clusterIP":null,
		"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null,"externalTrafficPolicy":null,"ports":null}}`,
		bridge.Name(name, svc.UID))
	f.must(server.Patch(f.Context(), svc, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner("tenant")))
	if svc.Spec.Type != corev1.ServiceTypeExternalName || len(svc.Spec.Ports) != 0 {
		f.Fatalf("%+v", svc.Spec)
	}
}

// TestAHopThatReplumbHasNotBegun: the owner of one Service makes it look as if it were in the
// middle of a hop, and like something that cannot arrive. It leaves the migration, and every
// command goes on with all others.
func TestAHopThatReplumbHasNotBegun(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		for _, command := range []string{"apply", "finish", "rollback"} {
			t.Run(command, func(t *testing.T) {
				f := setup(t, change)
				f.service("cart", at("10.96.3.7"))
				f.service("pay", at("10.96.3.9"))
				f.apply()
				f.asInAHop("cart")
				if command != "finish" {
					f.service("late", at("10.96.3.20")) // someone else's, that is still to move
				}
				f.must(f.run(command))
				want := map[string]string{"pay": "172.24.3.9", "late": "172.24.3.20"}
				switch command {
				case "rollback":
					want = map[string]string{"pay": "10.96.3.9", "late": "10.96.3.20"}
				case "finish":
					delete(want, "late")
				}
				for name, ip := range want {
					if got := f.get(name).Spec.ClusterIP; got != ip {
						t.Errorf("%s is at %s, want %s", name, got, ip)
					}
				}
				if is := f.get("cart"); is.Spec.Type != corev1.ServiceTypeExternalName {
					t.Errorf("cart is of type %s at %s", is.Spec.Type, is.Spec.ClusterIP)
				}
				if command != "apply" {
					f.nothingLeft()
				}
			})
		}
	})
}

// killedOnTheWay is a migration of two Services whose run was killed in the hop of cart.
func killedOnTheWay(t *testing.T, change func(*v1alpha1.Migration), of ...func(*corev1.Service)) *fixture {
	t.Helper()
	f := setup(t, change)
	f.service("cart", append(of, at("10.96.3.7"))...)
	f.service("pay", at("10.96.3.9"))
	f.job.Spec.Batch = 1
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &killedInHop{WithWatch: server.WithWatch, name: "cart"}
	f.through(&cut, func() {
		if _, err := f.job.Apply(t.Context(), f.runner); err == nil {
			t.Fatal("the run got through")
		}
	})
	if !f.half(f.get("cart")) {
		t.Fatal("cart is not in the middle of a hop")
	}
	return f
}

// TestArrivesWithPorts: an owner takes the ports of a Service away while it has no address.
func TestArrivesWithPorts(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		f := killedOnTheWay(t, change)
		svc := f.get("cart")
		f.must(server.Patch(t.Context(), svc, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"ports":null}}`))))
		f.must(f.run("apply"))
		if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" || len(is.Spec.Ports) != 2 {
			t.Errorf("at %s with ports %v", is.Spec.ClusterIP, is.Spec.Ports)
		}
	})
}

// TestNodePortIsGone: another Service was given a node port while the first had none.
func TestNodePortIsGone(t *testing.T) {
	for command, ip := range map[string]string{"apply": "172.24.3.7", "rollback": "10.96.3.7"} {
		t.Run(command, func(t *testing.T) {
			f := killedOnTheWay(t, func(*v1alpha1.Migration) {}, func(svc *corev1.Service) {
				svc.Spec.Type = corev1.ServiceTypeNodePort
				svc.Spec.Ports[0].NodePort = 32251
			})
			f.service("thief", at("10.96.3.30"), func(svc *corev1.Service) {
				svc.Spec.Type = corev1.ServiceTypeNodePort
				svc.Spec.Ports[0].NodePort = 32251
			})
			f.must(f.run(command))
			is := f.get("cart")
			if is.Spec.ClusterIP != ip || is.Spec.Type != corev1.ServiceTypeNodePort || is.Spec.Ports[0].NodePort == 32251 {
				t.Errorf("of type %s at %s with ports %v", is.Spec.Type, is.Spec.ClusterIP, is.Spec.Ports)
			}
			if !f.said("service shop/thief has 32251 by now") {
				t.Error("nobody says who has the node port")
			}
		})
	}
}

// said reports whether an event has a text.
func (f *fixture) said(text string) bool {
	for _, e := range f.events {
		if strings.Contains(e.Message+e.Note+e.Error, text) {
			return true
		}
	}
	return false
}

// TestRefusedOnArrival: a policy lets a Service leave its address, and not get another. Every
// command does everything else, says what is left and how to go on, and goes on after that.
func TestRefusedOnArrival(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		for _, command := range []string{"apply", "rollback", "finish"} {
			t.Run(command, func(t *testing.T) {
				f := killedOnTheWay(t, change)
				lift := f.noReturn()
				if command == "finish" { // which has the others finished
					f.refusedAn(f.run("apply"))
				}
				err := f.run(command)
				f.refusedAn(err)
				is := f.get("cart")
				b := f.get(bridge.Name("cart", is.UID))
				if got := f.answers(is); is.Spec.Type != corev1.ServiceTypeExternalName || !strings.Contains(got, "10.96.3.7") || !strings.Contains(got, "172.24.3.7") {
					t.Errorf("cart is of type %s, and its bridge %s answers at %s", is.Spec.Type, b.Name, got)
				}
				to, there := "172.24.", "172.24.3.7"
				if command == "rollback" {
					to, there = "10.96.", "10.96.3.7"
				}
				if got := f.get("pay"); !strings.HasPrefix(got.Spec.ClusterIP, to) {
					t.Errorf("pay is at %s", got.Spec.ClusterIP)
				}
				lift()
				f.must(f.run(command))
				if got := f.get("cart").Spec.ClusterIP; got != there {
					t.Errorf("cart is at %s, want %s", got, there)
				}
				if command != "apply" {
					f.nothingLeft()
				}
			})
		}
	})
}

// getsAddress is about giving an ExternalName an address.
func getsAddress(name string) trying {
	return func(ctx context.Context) (*admission.Refusal, error) {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"type":"ClusterIP","externalName":null}}`))
		return admission.Patch(ctx, server, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}, patch)
	}
}

// noReturn has a policy refuse an address to what has none.
func (f *fixture) noReturn() (lift func()) {
	f.Helper()
	f.service("external", func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: svc.Spec.Ports}
	})
	f.refused(getsAddress("external"), func() {
		f.policy("externalname-stays", "!(object.metadata.name in ['cart', 'external']) || oldObject.spec.type != 'ExternalName' || object.spec.type == 'ExternalName'",
			rule("", "services", admissionv1.Update))
	})
	return func() {
		meta := metav1.ObjectMeta{Name: "externalname-stays"}
		f.must(server.Delete(f.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta}))
		f.must(server.Delete(f.Context(), &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta}))
		f.eventually("an address", func() error {
			if refused, err := getsAddress("external")(f.Context()); refused != nil || err != nil {
				return errors.Join(err, refused)
			}
			return nil
		})
	}
}

// refusedAn fails if an error does not say who refuses cart an address, and what can be done.
func (f *fixture) refusedAn(err error) {
	f.Helper()
	if err == nil || !strings.Contains(err.Error(), "shop/cart gets no address: ValidatingAdmissionPolicy externalname-stays") {
		f.Fatalf("ended with %v", err)
	}
	hint := fault.Advice(err)
	if !strings.Contains(hint, "except the Service") || !strings.Contains(hint, "kubectl patch service -n shop cart --field-manager=replumb --type merge -p '{") {
		f.Errorf("hint: %s", hint)
	}
}

// TestNoReturnIsFoundBefore: what lets a Service leave, and not get an address again, is met by a
// trial in its namespace, before any Service has left.
func TestNoReturnIsFoundBefore(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.service("external", func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: svc.Spec.Ports}
	})
	f.refused(getsAddress("external"), func() {
		f.policy("externalname-stays", "oldObject.spec.type != 'ExternalName' || object.spec.type == 'ExternalName'",
			rule("", "services", admissionv1.Update))
	})
	_, err := f.job.Apply(t.Context(), f.runner)
	if err == nil || !strings.Contains(err.Error(), "service shop/cart may leave its address, and would be given no other: ValidatingAdmissionPolicy externalname-stays") {
		t.Fatalf("ended with %v", err)
	}
	if hint := fault.Advice(err); !strings.Contains(hint, "kubectl annotate service -n shop cart replumb.dev/strategy=pin") {
		t.Errorf("hint: %s", hint)
	}
	if is := f.get("cart"); is.Spec.ClusterIP != was.Spec.ClusterIP {
		t.Errorf("cart is at %q", is.Spec.ClusterIP)
	}
	f.must(f.run("rollback"))
	f.nothingLeft()
}

// TestCanaryThatGetsNoAddress ends apply, unlike a user's Service: no other has left yet.
func TestCanaryThatGetsNoAddress(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.service("external", func(svc *corev1.Service) {
		svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: svc.Spec.Ports}
	})
	f.refused(getsAddress("external"), func() {
		f.policy("externalname-stays", "!(object.metadata.name.startsWith('canary-') || object.metadata.name == 'external') || "+
			"oldObject.spec.type != 'ExternalName' || object.spec.type == 'ExternalName'",
			rule("", "services", admissionv1.Update), "shop", v1alpha1.SystemNamespace)
	})
	if _, err := f.job.Apply(t.Context(), f.runner); err == nil || !strings.Contains(err.Error(), "gets no address: ValidatingAdmissionPolicy externalname-stays") {
		t.Fatalf("ended with %v", err)
	}
	if is := f.get("cart"); is.Spec.ClusterIP != was.Spec.ClusterIP {
		t.Errorf("cart is at %q", is.Spec.ClusterIP)
	}
	f.must(f.run("rollback"))
	f.nothingLeft()
}
