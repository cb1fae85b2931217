//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/network/bridge"
)

// endpoints are the addresses behind a Service.
func (f *fixture) endpoints(service string) []string {
	f.Helper()
	all := &discoveryv1.EndpointSliceList{}
	f.must(server.List(f.Context(), all, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelServiceName: service}))
	var out []string
	for i := range all.Items {
		for _, e := range all.Items[i].Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	slices.Sort(out)
	return out
}

// on does something at the first event of a kind whose step begins with a name.
func (f *fixture) on(kind engine.EventKind, step string, do func()) {
	var once sync.Once
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Kind == kind && strings.HasPrefix(e.Step, step) {
			once.Do(do)
		}
	}
}

func TestEndpointsWithoutSelectorAreCopiedAndFollowed(t *testing.T) {
	f := setup(t)
	was := f.service("outside", at("10.96.3.7"), withoutSelector)
	own := f.slice("outside", "192.0.2.7")
	name := bridge.Name(was.Name, was.UID)
	f.on(engine.StepDone, "note/", func() {
		if got := f.endpoints(name); !slices.Equal(got, []string{"192.0.2.7"}) {
			t.Errorf("the bridge has endpoints %v", got)
		}
		own.Endpoints[0].Addresses = []string{"192.0.2.9"}
		f.must(server.Update(t.Context(), own))
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) {
				return slices.Equal(f.endpoints(name), []string{"192.0.2.9"}), nil
			})
		if err != nil {
			t.Errorf("the bridge does not follow: it has endpoints %v", f.endpoints(name))
		}
	})
	f.apply()
	is := f.get("outside")
	f.sameButAddress(was, is)
	if is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("at %s", is.Spec.ClusterIP)
	}
	f.must(f.finish())
	if got := f.endpoints(name); len(got) > 0 {
		t.Errorf("copies %v are left", got)
	}
	if got := f.endpoints("outside"); !slices.Equal(got, []string{"192.0.2.9"}) {
		t.Errorf("the Service's own endpoints are %v", got)
	}
	f.nothingLeft()
}

// TestRangeOfPinnedServicesAlone: a range that an earlier migration kept for a pinned Service is
// just what the next one would keep. It stays as it is: deleted, it would be in deletion as long as
// the Service has its address.
func TestRangeOfPinnedServicesAlone(t *testing.T) {
	const kept = "172.30.9.8/30"
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.From = []string{oldRange, kept} })
	f.openRange("old", oldRange)
	f.openRange("m-keep-172-30-9-8-30", kept)
	f.service("cart", at("172.31.3.7"))
	pinned := f.service("fixed", at("172.30.9.10"), func(s *corev1.Service) {
		s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin}
	})
	f.apply()
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16! "+kept; got != want {
		t.Errorf("ranges are %s, want %s", got, want)
	}
	f.must(f.finish())
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16 "+kept; got != want {
		t.Errorf("ranges are %s, want %s", got, want)
	}
	if is := f.get(pinned.Name); is.ResourceVersion != pinned.ResourceVersion {
		t.Errorf("%s was written: %+v", pinned.Name, is)
	}
	f.nothingLeft()
}

// TestKeptRangesGoWithTheirServices: of two Services that were pinned when apply kept ranges for
// them, one is gone by the time of finish.
func TestKeptRangesGoWithTheirServices(t *testing.T) {
	f, _ := office(t)
	gone := f.service("gone", at("172.31.9.24"), func(s *corev1.Service) {
		s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin}
	})
	f.apply()
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16! 172.31.3.8/30! 172.31.9.16/28!"; got != want {
		t.Fatalf("ranges are %s, want %s", got, want)
	}
	f.must(server.Delete(t.Context(), gone))
	f.again()
	f.must(f.finish())
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16 172.31.3.8/30"; got != want {
		t.Errorf("ranges are %s, want %s", got, want)
	}
	f.nothingLeft()
}

// TestEditBetweenBridgeAndHopIsFollowed: the bridge answers on the port that was added in between.
func TestEditBetweenBridgeAndHopIsFollowed(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.on(engine.StepStarted, "hop/shop/cart", func() {
		svc := f.get("cart")
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 9000})
		f.must(server.Update(t.Context(), svc))
		was = svc
	})
	f.apply()
	is := f.get("cart")
	f.sameButAddress(was, is)
	if b := f.get(bridge.Name(is.Name, is.UID)); len(b.Spec.Ports) != 3 || is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("at %s, bridge with %+v", is.Spec.ClusterIP, b.Spec.Ports)
	}
}

// TestServiceDeletedInItsHop leaves neither bridge nor holds, and does not stop the others.
func TestServiceDeletedInItsHop(t *testing.T) {
	for _, moment := range []string{"barrier/", "hop/shop/cart"} {
		t.Run(strings.Trim(moment, "/"), func(t *testing.T) {
			f := setup(t)
			svc := f.service("cart", at("10.96.3.7"))
			f.service("pay", at("10.96.3.9"))
			f.on(engine.StepStarted, moment, func() { f.must(server.Delete(t.Context(), svc)) })
			f.apply()
			if got := f.get("pay").Spec.ClusterIP; got != "172.24.3.9" {
				t.Errorf("pay is at %s", got)
			}
			for _, ip := range []string{"10.96.3.7", "172.24.3.7"} {
				if owner := f.owner(ip); owner != "" {
					t.Errorf("%s belongs to %s", ip, owner)
				}
			}
			f.must(f.finish())
			f.nothingLeft()
		})
	}
}

// TestServiceRecreatedInItsHop: a Service of the same name is another one, at an address of its own
// choice.
func TestServiceRecreatedInItsHop(t *testing.T) {
	f := setup(t)
	svc := f.service("cart", at("10.96.3.7"))
	f.on(engine.StepStarted, "hop/shop/cart", func() {
		f.must(server.Delete(t.Context(), svc))
		f.service("cart", at("10.96.4.4"))
	})
	f.apply()
	if got := f.get("cart").Spec.ClusterIP; got != "172.24.4.4" {
		t.Errorf("at %s", got)
	}
	f.must(f.finish())
	f.nothingLeft()
}

// TestRangeInUseIsNamed: what took an address of the range, and is no Service that could move, is
// named.
func TestRangeInUseIsNamed(t *testing.T) {
	f, _ := office(t)
	blocker := f.service("odd", at("172.31.3.50"), func(s *corev1.Service) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	})
	_, err := f.job.Apply(t.Context(), f.runner)
	if err == nil || !strings.Contains(err.Error(), "shop/"+blocker.Name) {
		t.Errorf("got %v", err)
	}
	f.must(server.Delete(t.Context(), blocker))
	f.apply()
	var gone *networkingv1.ServiceCIDR
	if gone, err = ranges.ServiceCIDR(t.Context(), server, "old"); gone != nil || err != nil {
		t.Errorf("the range is still there: %v, %v", gone, err)
	}
}

// TestHookFailsThenRollback: a run that a hook stopped can go back as any other.
func TestHookFailsThenRollback(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Hooks = []v1alpha1.Hook{{
			Name: "no", When: v1alpha1.AfterBatch, Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"false"}}},
		}}
	})
	was := f.service("cart", at("10.96.3.7"))
	_, err := f.job.Apply(t.Context(), f.runner)
	if stopped := (*engine.StepError)(nil); !errors.As(err, &stopped) {
		t.Fatalf("got %v", err)
	}
	m := f.again()
	m.Spec.Hooks = nil
	f.job.Spec.Common.Hooks = nil
	f.must(f.rollback())
	f.rolledBack(was)
}
