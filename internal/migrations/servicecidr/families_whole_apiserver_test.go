//go:build apiserver && long

package servicecidr

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// wholeFamily is a cluster of both families whose whole range of one moves: kubernetes and kube-dns
// with it, if they are of that family, and what API servers have as their flag.
type wholeFamily struct {
	*fixture
	on  *apitest.Server
	was map[client.ObjectKey]*corev1.Service
	// has is what API servers have before, becomes what they are to have.
	has, becomes string
	// asked are the lists that gates have asked for.
	asked []string
}

// setupWhole prepares a move to a range. The API server of the cluster goes by whatever gate asks
// for.
func setupWhole(t *testing.T, on *apitest.Server, to, has, becomes string) *wholeFamily {
	t.Helper()
	f := setupOn(t, on, func(m *v1alpha1.Migration) {
		s := m.Spec.ServiceCIDR
		s.To, s.ClusterServices, s.GateWait = []string{to}, v1alpha1.ClusterServicesMove, &metav1.Duration{Duration: 2 * time.Minute}
		s.Barrier = v1alpha1.BarrierSpec{Mode: v1alpha1.BarrierWait, Wait: &metav1.Duration{}}
	})
	f.runner.Deadline = time.Minute
	w := &wholeFamily{fixture: f, on: on, has: has, becomes: becomes, was: map[client.ObjectKey]*corev1.Service{}}
	dual := corev1.IPFamilyPolicyRequireDualStack
	f.service("cart", of(dual, corev1.IPv4Protocol, corev1.IPv6Protocol))
	f.service("six-first", of(dual, corev1.IPv6Protocol, corev1.IPv4Protocol))
	f.service("four", of(corev1.IPFamilyPolicySingleStack, corev1.IPv4Protocol))
	f.service("six", of(corev1.IPFamilyPolicySingleStack, corev1.IPv6Protocol))
	f.service("kube-dns", of(dual, corev1.IPv4Protocol, corev1.IPv6Protocol), func(s *corev1.Service) { s.Namespace = "kube-system" })
	for _, svc := range w.services() {
		w.was[client.ObjectKeyFromObject(svc)] = svc
	}
	if len(w.was) != 6 {
		t.Fatalf("there are %d Services", len(w.was))
	}
	w.requireRanges(has)
	w.operates()
	return w
}

// operates restarts the API server with what a gate asks for, each time that one does.
func (w *wholeFamily) operates() {
	w.each(engine.StepWaiting, func(e engine.Event) {
		_, rest, found := strings.Cut(e.Error, "--service-cluster-ip-range is not ")
		if !found {
			return
		}
		want, _, _ := strings.Cut(rest, " on ")
		if len(w.asked) > 0 && w.asked[len(w.asked)-1] == want {
			return
		}
		w.asked = append(w.asked, want)
		w.must(w.on.Restart(func() error { w.on.SetFlag("service-cluster-ip-range", want); return nil }))
	})
}

func (w *wholeFamily) services() []*corev1.Service {
	w.Helper()
	all := &corev1.ServiceList{}
	w.must(server.List(w.Context(), all))
	var services []*corev1.Service
	for i := range all.Items {
		services = append(services, &all.Items[i])
	}
	return services
}

// requireRanges fails unless the default ServiceCIDR has just these ranges, and there is no other
// but some.
func (w *wholeFamily) requireRanges(ofDefault string, others ...string) {
	w.Helper()
	all := &networkingv1.ServiceCIDRList{}
	w.must(server.List(w.Context(), all))
	var found []string
	for i := range all.Items {
		c := &all.Items[i]
		text := strings.Join(c.Spec.CIDRs, ",")
		if c.Name == ranges.DefaultRange && (text != ofDefault || !c.DeletionTimestamp.IsZero()) {
			w.Errorf("the default range is %s, deleted at %v; want %s", text, c.DeletionTimestamp, ofDefault)
		}
		if c.Name != ranges.DefaultRange {
			found = append(found, c.Name+"="+text)
		}
	}
	if strings.Join(found, " ") != strings.Join(others, " ") || len(all.Items) != len(others)+1 {
		w.Errorf("there are the ranges %v, and should be %v beside the default one", found, others)
	}
}

// requireBack fails unless all is as it was.
func (w *wholeFamily) requireBack() {
	w.Helper()
	for _, is := range w.services() {
		was := w.was[client.ObjectKeyFromObject(is)]
		if was == nil || !equality.Semantic.DeepEqual(was.Spec, is.Spec) || len(is.Annotations) > 0 {
			w.Errorf("%s/%s is back as %+v with %v", is.Namespace, is.Name, is.Spec, is.Annotations)
		}
	}
	w.requireRanges(w.has)
	w.nothingLeft()
}

// requireThere fails unless each Service has moved that has an address of the family, and has kept
// its other one.
func (w *wholeFamily) requireThere(to string) {
	w.Helper()
	target := netip.MustParsePrefix(to)
	for key, was := range w.was {
		is := &corev1.Service{}
		w.must(server.Get(w.Context(), key, is))
		for i, a := range services.AddressesOf(was) {
			now := services.AddressesOf(is)[i]
			if moves := a.Is4() == target.Addr().Is4(); moves && !target.Contains(now) || !moves && now != a {
				w.Errorf("%s was at %v, and is at %v", key, was.Spec.ClusterIPs, is.Spec.ClusterIPs)
			}
		}
	}
	// Addresses that are given out from now on are of the new range, and of the one that has
	// stayed.
	late := w.service("late", of(corev1.IPFamilyPolicyRequireDualStack))
	for _, a := range services.AddressesOf(late) {
		if !cidr.Contains(parseRanges(strings.Split(w.becomes, ",")...), a) {
			w.Errorf("a new Service is at %v", late.Spec.ClusterIPs)
		}
	}
	w.must(server.Delete(w.Context(), late))
}

// killedAt ends a command when a step begins or ends, as kill does.
func (w *wholeFamily) killedAt(kind engine.EventKind, step string, act func(context.Context) error) {
	w.Helper()
	ctx, kill := context.WithCancel(w.Context())
	killed, sink := false, w.runner.Sink
	w.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Kind == kind && strings.HasPrefix(e.Step, step) && !killed {
			killed = true
			kill()
		}
	}
	err := act(ctx)
	w.runner.Sink = sink
	if !killed || err == nil {
		w.Fatalf("was killed at %s: %v, and ended with %v", step, killed, err)
	}
	w.again()
}

func (w *wholeFamily) applying(ctx context.Context) error {
	_, err := w.job.Apply(ctx, w.runner)
	return err
}

func (w *wholeFamily) returning(ctx context.Context) error { return w.job.Rollback(ctx, w.runner) }

// afterwards is what ranges there are between apply and finish.
func (w *wholeFamily) afterwards(to, other string) {
	w.Helper()
	w.requireThere(to)
	w.requireRanges(w.becomes, "m="+to, "m-keep-of-kubernetes="+other)
}

// TestWholeRangeOfEitherFamily moves the whole range of one family and then that of the other, on
// one API server that is restarted with what gates ask for. Each moves there, killed after the old
// default range is gone and before there is another, and back; and back again from such a moment;
// then there and to the end. The second begins where the first has ended.
func TestWholeRangeOfEitherFamily(t *testing.T) {
	on := wholeServer(t, bothRanges)
	has := bothRanges
	for _, move := range wholeMoves() {
		becomes := strings.ReplaceAll(has, move.from, move.to)
		t.Run(move.to, func(t *testing.T) { thereAndBack(t, on, move.to, move.other, has, becomes) })
		t.Run(move.to+"/finish", func(t *testing.T) { thereToTheEnd(t, on, move.to, move.other, has, becomes) })
		if t.Failed() {
			return
		}
		has = becomes
	}
}

// TestWholeRangeOfSixFirst does so where IPv6 is the primary family, without the way back:
// kubernetes moves with the other family.
func TestWholeRangeOfSixFirst(t *testing.T) {
	has := "fd00:10:96::/112,10.96.0.0/16"
	on := wholeServer(t, has, apitest.Flag("advertise-address", "2001:db8::1")) // it has to be of that family
	for _, move := range wholeMoves() {
		becomes := strings.ReplaceAll(has, move.from, move.to)
		thereToTheEnd(t, on, move.to, move.other, has, becomes)
		has = becomes
	}
}

// wholeMoves are those of either family, one after the other, each with the range that stays.
func wholeMoves() []struct{ from, to, other string } {
	const old4, new4, old6, new6 = "10.96.0.0/16", "10.97.0.0/16", "fd00:10:96::/112", "fd00:10:97::/112"
	return []struct{ from, to, other string }{{old4, new4, old6}, {old6, new6, new4}}
}

// wholeServer is an API server whose certificate names kubernetes wherever it moves.
func wholeServer(t *testing.T, has string, more ...apitest.Option) *apitest.Server {
	t.Helper()
	var names []net.IP
	for _, name := range []string{"10.96.0.1", "10.97.0.1", "fd00:10:96::1", "fd00:10:97::1"} {
		names = append(names, net.ParseIP(name))
	}
	on, err := apitest.Run(has, append(more, apitest.Names(names...), apitest.Hurried())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = on.Stop() })
	return on
}

func thereAndBack(t *testing.T, on *apitest.Server, to, other, has, becomes string) {
	w := setupWhole(t, on, to, has, becomes)
	w.killedAt(engine.StepDone, "retire/"+ranges.DefaultRange, w.applying)
	w.apply()
	w.afterwards(to, other)
	w.events = nil
	w.apply()
	for _, e := range w.events {
		if e.Kind == engine.StepWaiting || strings.HasPrefix(e.Step, "retire/") || strings.HasPrefix(e.Step, "keep/") {
			t.Errorf("the second apply: %s %s %s", e.Kind, e.Step, e.Message)
		}
	}
	w.killedAt(engine.StepWaiting, "default/", w.returning) // the default range that the new flag made is going, or gone
	w.must(w.rollback())
	w.requireBack()

	w.killedAt(engine.StepDone, "retire/"+ranges.DefaultRange, w.applying)
	w.must(w.rollback())
	w.requireBack()
	if got, want := strings.Join(w.asked, " "), strings.Join([]string{becomes, has, becomes, has}, " "); got != want {
		t.Errorf("gates asked for %s, want %s", got, want)
	}
}

func thereToTheEnd(t *testing.T, on *apitest.Server, to, other, has, becomes string) {
	w := setupWhole(t, on, to, has, becomes)
	w.killedAt(engine.StepDone, "keep/m"+ranges.KeepOf+ranges.DefaultRange, w.applying)
	w.apply()
	w.afterwards(to, other)
	w.killedAt(
		engine.StepStarted,
		"hand-over/m"+ranges.KeepOf+ranges.DefaultRange,
		func(ctx context.Context) error { return w.job.Finish(ctx, w.runner) },
	)
	w.must(w.finish())
	w.requireThere(to)
	w.requireRanges(becomes)
	w.nothingLeft()
	if got := strings.Join(w.asked, " "); got != becomes {
		t.Errorf("gates asked for %s, want %s", got, becomes)
	}
}

// TestAnyRangeOfBothFamilies empties one family of a ServiceCIDR that is no API server's: its other
// range becomes one of the cluster's own, at the end and on the way back, and a Service keeps its
// address in it.
func TestAnyRangeOfBothFamilies(t *testing.T) {
	const from, to, other = "172.31.0.0/16", "172.24.0.0/16", "fd00:31::/112"
	on := bothFamiliesServer(t)
	for name, tt := range map[string]struct {
		end  func(*fixture) error
		want string
	}{
		"finish": {(*fixture).finish, to}, "rollback": {(*fixture).rollback, from},
	} {
		t.Run(name, func(t *testing.T) {
			f := setupOn(t, on, func(m *v1alpha1.Migration) {
				m.Spec.ServiceCIDR.From = []string{from}
				m.Spec.ServiceCIDR.Barrier = v1alpha1.BarrierSpec{Mode: v1alpha1.BarrierWait, Wait: &metav1.Duration{}}
			})
			f.must(server.Create(t.Context(), &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{from, other}},
			}))
			cart := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
				Spec: corev1.ServiceSpec{
					ClusterIP:  "172.31.3.7",
					ClusterIPs: []string{"172.31.3.7", "fd00:31::307"},
					Ports:      []corev1.ServicePort{{Port: 80}},
				},
			}
			of(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol)(cart)
			f.eventually("an address of each", func() error { return server.Create(t.Context(), cart.DeepCopy()) })
			f.apply()
			if got, want := f.ranges(), strings.Join([]string{bothRanges, to + "!", other + "!"}, " "); got != want {
				t.Errorf("ranges are %s, want %s", got, want)
			}
			f.must(tt.end(f))
			if got, want := f.ranges(), strings.Join([]string{bothRanges, tt.want, other}, " "); got != want {
				t.Errorf("in the end ranges are %s, want %s", got, want)
			}
			if at := services.AddressesOf(f.get("cart")); !netipPrefix(tt.want).Contains(at[0]) || at[1].String() != "fd00:31::307" {
				t.Errorf("cart is at %v", at)
			}
			f.nothingLeft()
		})
	}
}
