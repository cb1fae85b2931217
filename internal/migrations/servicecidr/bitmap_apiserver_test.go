//go:build apiserver && long

package servicecidr

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// The tests of this file are about clusters whose Service range is a flag. make e2e RUN=versions
// runs them with such a version; with any other they say so and end, after they have asked the API
// server.

const (
	flagWas = "10.96.0.0/16"
	flagIs  = "172.24.0.0/16"
)

// flagged is a cluster without ServiceCIDRs, whose operator changes the flag when a gate asks for
// it.
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
	if api != serviceranges.Bitmap {
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
	f.runner.Deadline = time.Minute
	f.runner.Sink = func(e engine.Event) {
		f.events = append(f.events, e)
		if e.Kind == engine.StepWaiting && e.Step == "gate/api-servers" {
			f.operate(e.Guide)
		}
	}
	return f
}

// eachKind makes a Service of each kind, and cluster DNS.
func (f *flagged) eachKind() *flagged {
	f.Helper()
	f.was = []*corev1.Service{
		f.service("cart", at("10.96.3.7")), f.service("any"), f.service("lb", at("10.96.3.10"), loadBalancer), f.service("np", nodePort),
		f.service("outside", at("10.96.3.8"), withoutSelector),
	}
	f.slice("outside", "192.0.2.7")
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10",
			Selector:  map[string]string{"k8s-app": "kube-dns"},
			Ports:     []corev1.ServicePort{{Port: 53, Protocol: "UDP"}},
		},
	}
	f.must(server.Create(f.Context(), dns))
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

// everythingIn fails unless every Service of the cluster but load balancers, bridges and
// reservations has an address in a range.
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
	guard := &freeze.AddressGuard{Client: server, Migration: "m"}
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

// TestBitmapMovesThereAndBackAndThere moves everything, kubernetes and cluster DNS too, back, there
// again, and finishes. What users do to pinned Services meanwhile works, and what they make gets an
// address of the range that API servers have.
func TestBitmapMovesThereAndBackAndThere(t *testing.T) {
	f := setupFlagged(t)
	if f == nil {
		return
	}
	f.eachKind()
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

// pinnedCanBeChanged has users change a Service that keeps an address out of the API servers'
// range.
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

// thief is a Service of someone else at an address, and what became of it.
func (f *flagged) thief(at string) error {
	return server.Create(f.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "thief"},
		Spec:       corev1.ServiceSpec{ClusterIP: at, Ports: []corev1.ServicePort{{Port: 80}}},
	})
}

// TestBitmapGuardsTheWayBack has someone ask for an address that a Service is to return to, from
// when the API server has the old range again: by a new Service, and by one that had none. As a
// control, without the guard they get it, and rollback stops, names them and shares nothing.
func TestBitmapGuardsTheWayBack(t *testing.T) {
	f := setupFlagged(t)
	if f == nil {
		return
	}
	f.was = []*corev1.Service{f.service("cart", at("10.96.3.7")), f.service("pay", at("10.96.3.9"))}
	f.apply()
	f.moved()
	f.amid = func() {
		if err := f.thief("10.96.3.7"); !refusedByGuard(err) {
			t.Errorf("a new Service at the old address of cart: %v", err)
		}
		named := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "named"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: []corev1.ServicePort{{Port: 80}},
		}}
		f.must(server.Create(t.Context(), named))
		named.Spec.Type, named.Spec.ExternalName, named.Spec.ClusterIP = corev1.ServiceTypeClusterIP, "", "10.96.3.9"
		if err := server.Update(t.Context(), named); !refusedByGuard(err) {
			t.Errorf("one that gets the old address of pay: %v", err)
		}
		f.must(server.Delete(t.Context(), named))
		free := f.service("free", at("10.96.3.8")) // what no one needs anyone may have
		f.must(server.Delete(t.Context(), free))
	}
	f.must(f.rollback())
	f.asItWas()

	f.amid = nil
	f.apply()
	f.amid = func() {
		for _, o := range guardObjects() {
			f.must(server.Delete(t.Context(), o))
		}
		f.eventually("the guard to be gone", func() error { return f.thief("10.96.3.7") })
	}
	err := f.rollback()
	if !errors.As(err, new(*bridge.TakenError)) || !strings.Contains(err.Error(), "10.96.3.7 is taken by services shop/thief") {
		t.Errorf("rollback ended with %v", err)
	}
	if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("cart is at %s", is.Spec.ClusterIP)
	}
	f.must(server.Delete(t.Context(), f.get("thief")))
	f.amid = nil
	f.must(f.rollback())
	f.asItWas()
}

// guardObjects are the policy and its binding.
func guardObjects() []client.Object {
	policy, binding := (&freeze.AddressGuard{}).Policy()
	return []client.Object{binding, policy}
}

func refusedByGuard(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), freeze.GuardName)
}

// TestBitmapReserves has an address be reserved, noted, kept from others when it comes into the
// range, and released, with what follows it.
func TestBitmapReserves(t *testing.T) {
	s := bitmapServer(t)
	if s == nil {
		return
	}
	f := flaggedOn(t, s)
	server.Namespace(t, v1alpha1.SystemNamespace)
	ctx, key := t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart-bridge"}
	seen := watchHolds(f)
	inside := &bridge.Hold{Migration: "m", Address: netip.MustParseAddr("10.96.3.7"), Bridge: key, Original: "spec"}
	outside := &bridge.Hold{Migration: "m", Address: netip.MustParseAddr("172.24.3.7"), Bridge: key}
	memo := &bridge.Hold{Migration: "m", Address: bridge.MemoAddress("uid"), Bridge: key, Old: inside.Address, New: outside.Address}
	for _, h := range []*bridge.Hold{inside, outside, memo} {
		f.must(h.Create(ctx, server))
		f.must(h.Create(ctx, server)) // again
		if got := f.owner(h.Address.String()); got != "services shop/cart-bridge" {
			t.Errorf("%s belongs to %s", h.Address, got)
		}
		seen("ADDED " + h.Address.String())
	}
	back := &bridge.Hold{Migration: "m", Address: memo.Address, Bridge: key}
	if err := back.Check(ctx, server); err != nil || back.Old != memo.Old || back.New != memo.New {
		t.Errorf("the memo says %+v: %v", back, err)
	}
	if err := f.thief("10.96.3.7"); !bridge.IsTaken(err) {
		t.Errorf("a reserved address is asked for: %v", err)
	}
	svc := f.service("cart", at("10.96.3.8"))
	other := &bridge.Hold{Migration: "m", Address: netip.MustParseAddr("10.96.3.8"), Bridge: key}
	if err := other.Create(ctx, server); !hop.IsTaken(err) || !strings.Contains(err.Error(), "services shop/"+svc.Name) {
		t.Errorf("the address of a Service is reserved: %v", err)
	}

	f.restart(flagIs)
	taken := ranges.CommitReservations{Client: server, Inventory: &services.Inventory{Spec: services.Spec{Name: "m"}}, In: netip.MustParsePrefix(flagIs)}
	f.must(engine.Drive(ctx, taken.Step()))
	seen("MODIFIED 172.24.3.7")
	if err := f.thief("172.24.3.7"); !bridge.IsTaken(err) {
		t.Errorf("an address that came into the range is asked for: %v", err)
	}
	if ip := (&networkingv1.IPAddress{}); server.Get(ctx, client.ObjectKey{Name: "172.24.3.7"}, ip) != nil ||
		ip.Annotations[v1alpha1.AnnotationNoted] != "" {
		t.Errorf("it is %+v", ip)
	}
	all := &networkingv1.IPAddressList{}
	f.must(server.List(ctx, all, client.MatchingLabels{v1alpha1.LabelMigration: "m"}))
	if len(all.Items) != 3 {
		t.Errorf("reserved are %v", all.Items)
	}
	f.must(server.List(ctx, all))
	if names := namesOfAddresses(
		all.Items,
	); !slices.Contains(names, "10.96.3.8") || !slices.Contains(names, "10.96.0.1") ||
		len(names) != 5 {
		t.Errorf("given or reserved are %v", names)
	}
	f.must((&bridge.Hold{Migration: "m", Address: outside.Address, Bridge: key, UID: "another"}).Release(ctx, server))
	seen("DELETED 172.24.3.7")
	f.must(f.thief("172.24.3.7"))
	f.must(bridge.ReleaseAll(ctx, server, "m", key))
	f.must(server.List(ctx, all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleHold}))
	if len(all.Items) > 0 {
		t.Errorf("left: %v", all.Items)
	}
}

func namesOfAddresses(all []networkingv1.IPAddress) (names []string) {
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

// watchHolds follows reserved addresses as the follower of bridges does, across restarts; what it
// returns waits for one event.
func watchHolds(f *flagged) func(event string) {
	events, had := make(chan string, 100), map[string]bool{}
	go func() {
		for f.Context().Err() == nil {
			w, err := server.Watch(f.Context(), &networkingv1.IPAddressList{}, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleHold})
			if err != nil {
				continue
			}
			for e := range w.ResultChan() {
				if ip, is := e.Object.(*networkingv1.IPAddress); is {
					events <- string(e.Type) + " " + ip.Name
				}
			}
		}
	}()
	return func(event string) {
		f.Helper()
		f.eventually("the event "+event, func() error {
			for {
				select {
				case e := <-events:
					had[e] = true
				default:
					if !had[event] {
						return engine.NotYet("seen were %v", had)
					}
					return nil
				}
			}
		})
	}
}

// TestBitmapKilled cuts apply off in each phase, and goes on or turns back, and cuts rollback off
// in each.
func TestBitmapKilled(t *testing.T) {
	s := bitmapServer(t)
	if s == nil {
		return
	}
	var f *flagged
	begin := func() *fixture {
		if f != nil && f.flag != flagWas { // the run that got through moved kubernetes too, which stays when the rest is removed
			f.again()
			f.must(f.rollback())
		}
		f = flaggedOn(t, s)
		f.was = []*corev1.Service{f.service("cart", at("10.96.3.7"))}
		return f.fixture
	}
	apply := func(of *fixture) error {
		_, err := of.job.Apply(t.Context(), of.runner)
		return err
	}
	t.Run("apply", func(t *testing.T) {
		everyWrite(t, 12, begin, apply, func(_ *fixture, n int) {
			if n%2 == 1 && f.again() != nil {
				f.apply()
				f.moved()
			}
			if f.again() != nil {
				f.must(f.rollback())
				f.asItWas()
			}
		})
	})
	t.Run("rollback", func(t *testing.T) {
		there := func() *fixture {
			of := begin()
			f.apply()
			return of
		}
		everyWrite(t, 12, there, (*fixture).rollback, func(_ *fixture, n int) {
			f.again()
			if n%2 == 1 { // half of them turn again
				f.apply()
				f.moved()
				f.again()
			}
			f.must(f.rollback())
			f.asItWas()
		})
	})
}

// TestBitmapRefusals has what such a cluster cannot do be found before anything is written.
func TestBitmapRefusals(t *testing.T) {
	s := bitmapServer(t)
	if s == nil {
		return
	}
	for name, change := range map[string]func(*v1alpha1.Migration){
		"mode":          func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Mode = v1alpha1.ModeExtend },
		"two targets":   func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.To = []string{"172.24.0.0/17", "172.24.128.0/17"} },
		"another range": func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.From = []string{"10.97.0.0/16"} },
		"Services that stay": func(m *v1alpha1.Migration) {
			m.Spec.ServiceCIDR.ClusterServices = v1alpha1.ClusterServicesStay
		},
	} {
		f := flaggedOn(t, s, change)
		f.service("cart", at("10.96.3.7"))
		p, err := f.job.Look(t.Context())
		f.must(err)
		if !slices.Contains(p.Found().Blocking().Codes(), "RP1732") {
			t.Errorf("%s: blocked by %v", name, p.Found().Blocking().Codes())
		}
	}
}
