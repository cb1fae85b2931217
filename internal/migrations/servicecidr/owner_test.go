//go:build apiserver

package servicecidr

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestOneOwnerPerAddress follows bridges there and back: they answer at both addresses when
// Services hop, and besides only where their Service is not. That a check sees one that is wide is
// its control.
func TestOneOwnerPerAddress(t *testing.T) {
	for _, form := range []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs} {
		t.Run(string(form), func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = form })
			f.node("a", "192.0.2.1")
			was := []*corev1.Service{
				f.service(
					"cart",
					at("10.96.3.7"),
				),
				f.service("pay", at("10.96.3.8"), nodePort),
				f.service("outside", at("10.96.3.9"), withoutSelector),
			}
			f.slice("outside", "192.0.2.7")
			wide := 0
			f.each(engine.StepStarted, func(e engine.Event) {
				for _, w := range was {
					if moves := e.Step == "hop/shop/"+w.Name || e.Step == "return/shop/"+w.Name; moves {
						f.answersAt(w, w.Spec.ClusterIP+" "+strings.Replace(w.Spec.ClusterIP, "10.96", "172.24", 1))
						wide++
					}
				}
			})
			f.apply()
			for _, w := range was {
				f.checkBridge(w, f.get(w.Name), form)
			}
			f.each(engine.PhaseStarted, func(e engine.Event) {
				if e.Phase != "release" {
					return
				}
				for _, w := range was {
					if is := f.get(w.Name); is.Spec.ClusterIP != w.Spec.ClusterIP {
						t.Errorf("%s is at %s", w.Name, is.Spec.ClusterIP)
					}
					f.answersAt(w, strings.Replace(w.Spec.ClusterIP, "10.96", "172.24", 1))
				}
			})
			f.must(f.rollback())
			f.nothingLeft()
			if wide != 2*len(was) {
				t.Errorf("saw %d hops", wide)
			}
		})
	}
}

// answersAt fails unless the bridge of a Service answers where it should.
func (f *fixture) answersAt(of *corev1.Service, want string) {
	f.Helper()
	if got := f.answers(of); got != want {
		f.Errorf("the bridge of %s answers on %s, want %s", of.Name, got, want)
	}
}

// each does something at every event of a kind.
func (f *fixture) each(kind engine.EventKind, do func(engine.Event)) {
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Kind == kind {
			do(e)
		}
	}
}
