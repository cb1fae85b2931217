//go:build apiserver

package servicecidr

import (
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
)

func TestMoveThereAndFinish(t *testing.T) {
	for _, form := range []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs} {
		t.Run(string(form), func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = form })
			f.node("a", "192.0.2.1")
			f.node("b", "192.0.2.2")
			was := []*corev1.Service{
				f.service("cart", at("10.96.3.7")),
				f.service("front", at("10.96.3.8")),
				f.service("pay", at("10.96.3.9")),
			}
			f.pod("cart-1", "cart", "10.244.0.4")
			headless := f.service("headless", at("None"))
			f.apply()
			for _, w := range was {
				is := f.get(w.Name)
				f.sameButAddress(w, is)
				if want := strings.Replace(w.Spec.ClusterIP, "10.96", "172.24", 1); is.Spec.ClusterIP != want {
					t.Errorf("%s is at %s, want %s", w.Name, is.Spec.ClusterIP, want)
				}
				f.checkBridge(w, is, form)
			}
			f.sameButAddress(headless, f.get("headless"))
			if f.probe.asked < 4 {
				t.Errorf("two batches on two nodes were proven by %d questions", f.probe.asked)
			}
			f.must(f.job.Finish(t.Context(), f.runner))
			for _, w := range was {
				is := f.get(w.Name)
				f.sameButAddress(w, is)
				if len(is.Annotations) != 0 || f.owner(w.Spec.ClusterIP) != "" {
					t.Errorf("%s: annotations %v and old address owned by %q are left", w.Name, is.Annotations, f.owner(w.Spec.ClusterIP))
				}
			}
			f.nothingLeft()
		})
	}
}

func TestApplyAgainChangesNothing(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	before := f.get("cart").ResourceVersion
	f.events = nil
	f.apply()
	for _, e := range f.events {
		if e.Kind == engine.StepDone {
			t.Errorf("did %s", e.Step)
		}
	}
	if f.get("cart").ResourceVersion != before {
		t.Error("the Service was written")
	}
}

func TestRollbackRestoresTheExactSpecThereAndBack(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	was := []*corev1.Service{f.service("cart"), f.service("front"), f.service("pay")}
	for range 3 {
		f.apply()
		f.must(f.job.Rollback(t.Context(), f.runner))
		for _, w := range was {
			is := f.get(w.Name)
			if !equality.Semantic.DeepEqual(w.Spec, is.Spec) || w.UID != is.UID || len(is.Annotations) != 0 {
				t.Errorf("%s was\n%+v\nis\n%+v\n%v", w.Name, w.Spec, is.Spec, is.Annotations)
			}
		}
		f.nothingLeft()
		err := server.Get(t.Context(), client.ObjectKey{Name: "m"}, &networkingv1.ServiceCIDR{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the target range is left: %v", err)
		}
	}
}

func TestRollbackAfterFinishIsRefused(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	f.must(f.job.Finish(t.Context(), f.runner))
	m, err := migration.Get(t.Context(), server, "m")
	f.must(err)
	f.job.Migration = m
	var state *migration.StateError
	if err := f.job.Rollback(t.Context(), f.runner); !errors.As(err, &state) {
		t.Errorf("got %v", err)
	}
}

// TestOldAddressIsKeptFromOthers is the control of holds: without one the API server would give the
// address away.
func TestOldAddressIsKeptFromOthers(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.apply()
	stranger := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "stranger"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.3.7", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := server.Create(t.Context(), stranger); !bridge.IsTaken(err) {
		t.Errorf("creating a Service at an old address: %v", err)
	}
}

func TestEditOfAMovedServiceIsFollowedByItsBridge(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	svc := f.get("cart")
	svc.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
	f.must(server.Update(t.Context(), svc))
	f.apply()
	if b := f.get(bridge.Name(svc.Name, svc.UID)); b.Spec.Ports[0].TargetPort.IntValue() != 9090 {
		t.Errorf("bridge has %+v", b.Spec.Ports)
	}
}

func TestDeletedServiceTakesItsBridgeAlong(t *testing.T) {
	f := setup(t)
	svc := f.service("cart")
	f.apply()
	f.must(server.Delete(t.Context(), svc))
	f.apply()
	f.must(f.job.Finish(t.Context(), f.runner))
	f.nothingLeft()
}

func TestServicesCreatedMeanwhileAreSweptUp(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	var once sync.Once
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Kind == engine.PhaseDone && e.Phase == "move" {
			once.Do(func() { f.service("late", at("10.96.3.8")) })
		}
	}
	f.apply()
	if is := f.get("late"); is.Spec.ClusterIP != "172.24.3.8" {
		t.Errorf("late is at %s", is.Spec.ClusterIP)
	}
}
