//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
)

// The tests of this file are about clusters whose Service range is a flag. make test-versions runs them with such a version; with any other
// they say so and end, after they have asked the API server.

const (
	flagWas = "10.96.0.0/16"
	flagIs  = "172.24.0.0/16"
)

// flagged is a cluster without ServiceCIDRs, whose operator changes the flag when a gate asks for it.
type flagged struct {
	*fixture
	flag string
	was  []*corev1.Service
	// amid is called by the operator when the API server has its new flag.
	amid func()
	// restarts counts them.
	restarts int
}

// bitmapServer is an API server of the test's own; nil, if it has ServiceCIDRs.
func bitmapServer(t *testing.T) *apitest.Server {
	t.Helper()
	s, err := apitest.Run(flagWas, apitest.Names(net.ParseIP("10.96.0.1"), net.ParseIP("172.24.0.1")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	api, err := s.Ranges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if api != cluster.Bitmap {
		t.Logf("the API server has ServiceCIDRs (%s)", api)
		return nil
	}
	return s
}

// setupFlagged makes one of each kind of Service; nil, if the API server has ServiceCIDRs.
func setupFlagged(t *testing.T, change ...func(*v1alpha1.Migration)) *flagged {
	t.Helper()
	s := bitmapServer(t)
	if s == nil {
		return nil
	}
	return flaggedOn(t, s, change...)
}

func flaggedOn(t *testing.T, s *apitest.Server, change ...func(*v1alpha1.Migration)) *flagged {
	t.Helper()
	all := append([]func(*v1alpha1.Migration){func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR.ClusterServices = v1alpha1.ClusterServicesMove
		m.Spec.ServiceCIDR.GateWait = &metav1.Duration{Duration: time.Minute}
	}}, change...)
	f := &flagged{flag: flagWas}
	f.fixture = setupOn(t, s, all...)
	f.pod("cart-1", "cart", "10.244.0.4")
	f.was = []*corev1.Service{
		f.service("cart", at("10.96.3.7")), f.service("any"), f.service("lb", at("10.96.3.10"), loadBalancer), f.service("np", nodePort),
		f.service("outside", at("10.96.3.8"), withoutSelector),
	}
	f.slice("outside", "192.0.2.7")
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Selector: map[string]string{"k8s-app": "kube-dns"}, Ports: []corev1.ServicePort{{Port: 53, Protocol: "UDP"}}},
	}
	f.must(server.Create(t.Context(), dns))
	f.runner.Deadline = time.Minute
	f.runner.Sink = func(e engine.Event) {
		f.events = append(f.events, e)
		if e.Kind == engine.StepWaiting || e.Kind == engine.StepFailed || e.Kind == engine.PhaseStarted || e.Kind == engine.RunFailed {
			t.Logf("%s %s %s %s", e.Kind, e.Phase, e.Step, e.Error)
		}
		if e.Kind == engine.StepWaiting && e.Step == "gate/api-servers" {
			f.operate(e.Guide)
		}
	}
	return f
}

// operate changes the flag as the gate says.
func (f *flagged) operate(guide string) {
	want := flagWas
	if strings.Contains(guide, "="+flagIs) {
		want = flagIs
	}
	if f.flag != want {
		f.restart(want)
	}
}

func (f *flagged) restart(want string) {
	f.Helper()
	f.must(server.Restart(func() error { server.SetFlag("service-cluster-ip-range", want); return nil }))
	f.flag = want
	f.restarts++
	f.eventually("an answer", func() error { return server.List(f.Context(), &corev1.NamespaceList{}) })
	if f.amid != nil {
		f.amid()
	}
}

// everythingIn fails unless every Service of the cluster but load balancers, bridges and reservations has an address in a range.
func (f *flagged) everythingIn(r string) {
	f.Helper()
	all := &corev1.ServiceList{}
	f.must(server.List(f.Context(), all))
	for _, svc := range all.Items {
		a, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err != nil || svc.Labels[v1alpha1.LabelRole] != "" || svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
			continue
		}
		if !netip.MustParsePrefix(r).Contains(a) {
			f.Errorf("service %s/%s is at %s, not in %s", svc.Namespace, svc.Name, a, r)
		}
	}
}

// asItWas fails if a Service is not what it was before the migration.
func (f *flagged) asItWas() {
	f.Helper()
	for _, w := range f.was {
		is := f.get(w.Name)
		if !equality.Semantic.DeepEqual(w.Spec, is.Spec) || w.UID != is.UID || len(is.Annotations) > 0 {
			f.Errorf("%s was\n%+v\nis\n%+v\n%v", w.Name, w.Spec, is.Spec, is.Annotations)
		}
	}
	f.everythingIn(flagWas)
	f.nothingLeft()
	f.noGuard()
	if phase := f.again().Status.Phase; phase != v1alpha1.PhaseRolledBack {
		f.Errorf("phase %s", phase)
	}
}

func (f *flagged) noGuard() {
	f.Helper()
	guard := &freeze.Guard{Client: server, Migration: "m"}
	if state, err := guard.Undo().State(f.Context()); state != engine.Done {
		f.Errorf("the guard is %v: %v", state, err)
	}
}

func (f *flagged) moved() {
	f.Helper()
	f.everythingIn(flagIs)
	f.noGuard()
	for _, w := range f.was {
		if w.Spec.Type == corev1.ServiceTypeLoadBalancer {
			continue
		}
		f.sameButAddress(w, f.get(w.Name))
		if got := f.answers(w); got != w.Spec.ClusterIP {
			f.Errorf("bridge of %s answers at %s", w.Name, got)
		}
		if got, want := f.owner(w.Spec.ClusterIP), "services shop/"+bridge.Name(w.Name, w.UID); got != want {
			f.Errorf("%s belongs to %q", w.Spec.ClusterIP, got)
		}
	}
}

// TestBitmapMovesThereAndBackAndThere moves everything, kubernetes and cluster DNS too, back, there again, and finishes. What users do to
// pinned Services meanwhile works, and what they make gets an address of the range that API servers have.
func TestBitmapMovesThereAndBackAndThere(t *testing.T) {
	f := setupFlagged(t)
	if f == nil {
		return
	}
	f.apply()
	f.moved()
	f.pinnedCanBeChanged()
	f.apply() // changes nothing
	f.must(f.rollback())
	f.asItWas()
	f.apply()
	f.moved()
	f.must(f.finish())
	f.everythingIn(flagIs)
	f.nothingLeft()
	f.noGuard()
	if f.restarts != 3 {
		t.Errorf("the flag was changed %d times", f.restarts)
	}
	f.service("after")
	f.everythingIn(flagIs)
}

// pinnedCanBeChanged has users change a Service that keeps an address out of the API servers' range.
func (f *flagged) pinnedCanBeChanged() {
	f.Helper()
	lb := f.get("lb")
	if lb.Spec.ClusterIP != "10.96.3.10" {
		f.Fatalf("the load balancer is at %s", lb.Spec.ClusterIP)
	}
	was := lb.DeepCopy()
	lb.Spec.Ports = append(lb.Spec.Ports, corev1.ServicePort{Name: "more", Port: 8443, Protocol: corev1.ProtocolTCP})
	lb.Labels = map[string]string{"changed": "yes"}
	f.must(server.Update(f.Context(), lb))
	lb.Spec.Ports, lb.Labels = was.Spec.Ports, nil
	f.must(server.Update(f.Context(), lb))
	for i := range f.was {
		if f.was[i].Name == "lb" {
			f.was[i].Spec = f.get("lb").Spec
		}
	}
}

var (
	_ = errors.New
	_ = fmt.Sprint
	_ = slices.Contains[[]string]
	_ = apierrors.IsInvalid
	_ context.Context
	_ discoveryv1.EndpointSlice
	_ networkingv1.IPAddress
	_ client.Client
	_ apiserver.Server
	_ crash.Client
)
