//go:build apiserver && long

package overlap

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16"}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// patience is for machines that are busy. What is promised is a second; how long it took is logged.
const patience = time.Minute

type fixture struct{ *testing.T }

func setup(t *testing.T) *fixture {
	t.Helper()
	server = lazy.Get(t)
	server.Clean(t)
	server.Namespace(t, "shop")
	server.Namespace(t, v1alpha1.SystemNamespace)
	f := &fixture{t}
	f.must(server.DeleteAllOf(t.Context(), &coordinationv1.Lease{}, client.InNamespace(v1alpha1.SystemNamespace)))
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// replica is one that runs, and can be killed.
type replica struct {
	*Replica
	dead atomic.Bool
	stop func()
}

// kill has no request of the replica go through from now on: it gives no lead up, and says nothing
// more.
func (r *replica) kill() { r.dead.Store(true) }

func (f *fixture) replica(name string) *replica {
	f.Helper()
	r := &replica{}
	config := rest.CopyConfig(server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &mortal{next: next, dead: &r.dead} })
	c, err := cluster.Connect(config)
	f.must(err)
	r.Replica = &Replica{Cluster: c, Migration: "m", Name: name, Log: func(err error) { f.Logf("%s: %v", name, err) }}
	ctx, cancel := context.WithCancel(f.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	r.stop = func() { cancel(); running.Wait() }
	f.Cleanup(r.stop)
	return r
}

// mortal lets no request through once it is dead, nor more of the answers to earlier ones.
type mortal struct {
	next http.RoundTripper
	dead *atomic.Bool
}

var errDead = errors.New("killed")

func (m *mortal) RoundTrip(q *http.Request) (*http.Response, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	return m.next.RoundTrip(q)
}

// until waits for something, and returns how long that took.
func (f *fixture) until(what string, holds func(context.Context) bool) time.Duration {
	f.Helper()
	begin := time.Now()
	err := wait.PollUntilContextTimeout(f.Context(), 5*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return holds(ctx), nil
	})
	if err != nil {
		f.Fatalf("%s: %v", what, err)
	}
	return time.Since(begin)
}

// heartbeat is what a replica says.
func (f *fixture) heartbeat(name string) (Heartbeat, bool) {
	l := &coordinationv1.Lease{}
	if server.Get(f.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: name}, l) != nil {
		return Heartbeat{}, false
	}
	return Heard(l)
}

// leader is who leads.
func (f *fixture) leader() string {
	l := &coordinationv1.Lease{}
	if server.Get(f.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: LeaseName}, l) != nil ||
		l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// ready waits until a replica reports that all is in step.
func (f *fixture) ready(name string) {
	f.Helper()
	f.until(name+" reports", func(context.Context) bool {
		h, ok := f.heartbeat(name)
		return ok && h.At.Equal(h.InStep)
	})
}

// service makes a Service that has moved, with its bridge and the address that is reserved for it.
func (f *fixture) service(name string, host int, selector map[string]string) (*corev1.Service, *bridge.Bridge) {
	f.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector, ClusterIP: fmt.Sprintf("10.96.3.%d", host),
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	f.must(server.Create(f.Context(), svc))
	old, next := netip.MustParseAddr(fmt.Sprintf("10.96.4.%d", host)), netip.MustParseAddr(svc.Spec.ClusterIP)
	b := &bridge.Bridge{
		Migration: "m", Service: svc, Old: old, New: next, Within: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Form: v1alpha1.BridgeLoadBalancer,
	}
	f.must(f.hold(b).Create(f.Context(), server))
	f.must(b.Ensure(f.Context(), server, cidr.NewPool([]netip.Prefix{netip.MustParsePrefix("10.96.7.0/24")}, nil)))
	return svc, b
}

func (f *fixture) hold(b *bridge.Bridge) *bridge.Hold {
	return &bridge.Hold{Migration: "m", Address: b.Old, Bridge: b.Key()}
}

func (f *fixture) slice(service, name string, addresses ...string) *discoveryv1.EndpointSlice {
	f.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}
	f.must(server.Create(f.Context(), s))
	return s
}

// endpoints are the addresses behind a Service.
func (f *fixture) endpoints(service string) []string {
	all := &discoveryv1.EndpointSliceList{}
	if server.List(f.Context(), all, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelServiceName: service}) != nil {
		return nil
	}
	var out []string
	for i := range all.Items {
		for _, e := range all.Items[i].Endpoints {
			out = append(out, e.Addresses...)
		}
	}
	slices.Sort(out)
	return out
}

func (f *fixture) get(key client.ObjectKey) *corev1.Service {
	svc := &corev1.Service{}
	f.must(server.Get(f.Context(), key, svc))
	return svc
}

// change changes a Service as it is now.
func (f *fixture) change(key client.ObjectKey, do func(*corev1.Service)) {
	f.Helper()
	svc := f.get(key)
	was := svc.DeepCopy()
	do(svc)
	f.must(server.Patch(f.Context(), svc, client.MergeFrom(was)))
}

// same reports whether a bridge has of its Service what it should.
func (f *fixture) same(b *bridge.Bridge) bool {
	svc, have := f.get(client.ObjectKeyFromObject(b.Service)), f.get(b.Key())
	want := *b
	want.Service = svc
	return bridge.Difference(have, want.Build(), false) == nil
}

// TestBridgesAreKeptInStep: whatever of a Service says where requests go is what its bridge has,
// soon after it has changed. What only the migration writes stays as it is.
func TestBridgesAreKeptInStep(t *testing.T) {
	f := setup(t)
	_, plain := f.service("cart", 1, map[string]string{"app": "cart"})
	_, bare := f.service("outside", 2, nil)
	first := f.slice("outside", "outside-a", "192.0.2.7")
	bridged := bare.Key().Name
	f.replica("one")
	f.ready("one")
	if got := f.endpoints(bridged); !slices.Equal(got, []string{"192.0.2.7"}) {
		t.Errorf("at first the bridge has %v", got)
	}
	cart, before := client.ObjectKeyFromObject(plain.Service), f.get(plain.Key())
	for what, do := range map[string]func(*corev1.Service){
		"selector": func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "cart", "slot": "green"} },
		"ports": func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP})
		},
		"target port": func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(9090) },
		"affinity":    func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
		"not ready":   func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true },
		"distribution": func(s *corev1.Service) {
			s.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferClose)
		},
	} {
		f.change(cart, do)
		t.Logf("%s followed after %s", what, f.until(what, func(context.Context) bool { return f.same(plain) }))
	}
	after := f.get(plain.Key())
	if !equality.Semantic.DeepEqual(before.Status, after.Status) || before.Spec.ClusterIP != after.Spec.ClusterIP ||
		before.Spec.Type != after.Spec.Type {
		t.Errorf("the bridge was %+v and is %+v", before, after)
	}

	first.Endpoints[0].Addresses = []string{"192.0.2.8"}
	f.must(server.Update(t.Context(), first))
	expect := func(what string, want ...string) {
		t.Helper()
		t.Logf("%s followed after %s", what, f.until(what, func(context.Context) bool { return slices.Equal(f.endpoints(bridged), want) }))
	}
	expect("changed endpoints", "192.0.2.8")
	f.slice("outside", "outside-b", "192.0.2.9")
	expect("a second slice", "192.0.2.8", "192.0.2.9")
	f.must(server.Delete(t.Context(), first))
	expect("a slice less", "192.0.2.9")
	copied := &discoveryv1.EndpointSliceList{}
	f.must(server.List(t.Context(), copied, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelServiceName: bridged}))
	f.must(server.Delete(t.Context(), &copied.Items[0]))
	expect("a copy that was removed", "192.0.2.9")
}

// TestHalfHoppedServiceKeepsItsBridge: between the two patches a Service has no ports, and its
// bridge answers for it.
func TestHalfHoppedServiceKeepsItsBridge(t *testing.T) {
	f := setup(t)
	svc, b := f.service("cart", 1, map[string]string{"app": "cart"})
	other, next := f.service("next", 2, map[string]string{"app": "next"})
	f.replica("one")
	f.ready("one")
	before := f.get(b.Key())
	f.change(client.ObjectKeyFromObject(svc), func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: b.Key().Name + ".shop.svc.cluster.local"}
	})
	f.change(client.ObjectKeyFromObject(other), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "later"} })
	f.until("the next one", func(context.Context) bool { return f.same(next) }) // by then the first has been looked at
	if after := f.get(b.Key()); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the bridge was %+v and is %+v", before.Spec, after.Spec)
	}
}

// TestForgedBridgesAreLeftAlone: who may edit Services in a namespace cannot have replicas write to
// one that is no bridge. The control is the same Service with an address that is reserved for it,
// which no tenant can have.
func TestForgedBridgesAreLeftAlone(t *testing.T) {
	f := setup(t)
	victim, _ := f.service("cart", 1, map[string]string{"app": "cart"})
	forged := func(name string, of *corev1.Service) *corev1.Service {
		evil := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name,
				Labels: map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleBridge},
				Annotations: map[string]string{
					v1alpha1.AnnotationService: of.Name, v1alpha1.AnnotationServiceUID: string(of.UID),
				},
			},
			Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{
					{Name: "own", Port: 81},
				},
				ExternalIPs: []string{"203.0.113.9"},
				Selector:    map[string]string{"app": "evil"},
			},
		}
		f.must(server.Create(t.Context(), evil))
		return evil
	}
	bait := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bait"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "bait"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	f.must(server.Create(t.Context(), bait))
	named, alike := forged("elsewhere", victim), forged(bridge.Name(bait.Name, bait.UID), bait)
	_, proof := f.service("proof", 2, map[string]string{"app": "proof"})
	f.replica("one")
	f.ready("one")
	f.change(client.ObjectKeyFromObject(victim), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "cart-2"} })
	f.change(client.ObjectKeyFromObject(bait), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "bait-2"} })
	f.change(client.ObjectKeyFromObject(proof.Service), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "proof-2"} })
	f.until("the true bridge", func(context.Context) bool { return f.same(proof) })
	for _, evil := range []*corev1.Service{named, alike} {
		if is := f.get(client.ObjectKeyFromObject(evil)); is.ResourceVersion != evil.ResourceVersion {
			t.Errorf("%s was written: %+v", evil.Name, is.Spec)
		}
	}
	// The control: what replicas go by.
	h := &bridge.Hold{Migration: "m", Address: netip.MustParseAddr("10.96.4.9"), Bridge: client.ObjectKeyFromObject(alike)}
	f.must(h.Create(t.Context(), server))
	f.until("the control", func(context.Context) bool {
		return f.get(client.ObjectKeyFromObject(alike)).Spec.Selector["app"] == "bait-2"
	})
}

// TestReplicasMakeUpForEachOther: while endpoints change all the time, the one that leads is
// killed, and then the other one in turn. Each change is followed. Without both of them none is,
// which is the control.
func TestReplicasMakeUpForEachOther(t *testing.T) {
	f := setup(t)
	_, bare := f.service("outside", 2, nil)
	own, bridged := f.slice("outside", "outside-a", "192.0.2.1"), bare.Key().Name
	all := map[string]*replica{"one": f.replica("one"), "two": f.replica("two")}
	f.ready("one")
	f.ready("two")
	f.until("one of them leads", func(context.Context) bool { return all[f.leader()] != nil })
	step, slowest := 1, time.Duration(0)
	follow := func() {
		t.Helper()
		step++
		own.Endpoints[0].Addresses = []string{fmt.Sprintf("192.0.2.%d", step)}
		f.must(server.Update(t.Context(), own))
		slowest = max(slowest, f.until("following", func(context.Context) bool {
			return slices.Equal(f.endpoints(bridged), own.Endpoints[0].Addresses)
		}))
	}
	for range 20 {
		follow()
	}
	t.Logf("with both: at most %s", slowest)
	var leader string
	f.until("one of them leads still", func(context.Context) bool { leader = f.leader(); return all[leader] != nil })
	all[leader].kill()
	slowest = 0
	for range 20 {
		follow()
	}
	t.Logf("without the leader %s: at most %s", leader, slowest)
	if now := f.leader(); now != leader {
		t.Logf("%s leads by now", now)
	}
	other := map[string]string{"one": "two", "two": "one"}[leader]
	next := f.replica("three")
	f.ready("three")
	all[other].kill()
	slowest = 0
	for range 20 {
		follow()
	}
	t.Logf("with a new one alone: at most %s", slowest)

	next.stop()
	all["one"].stop()
	all["two"].stop()
	last := f.endpoints(bridged)
	own.Endpoints[0].Addresses = []string{"192.0.2.200"}
	f.must(server.Update(t.Context(), own))
	w, err := server.Watch(t.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace("shop"),
		client.MatchingLabels{discoveryv1.LabelServiceName: bridged})
	f.must(err)
	defer w.Stop()
	deadline := time.After(2 * time.Second)
	for waiting := true; waiting; {
		select {
		case <-deadline:
			waiting = false
		case e := <-w.ResultChan():
			if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok && !slices.Equal(s.Endpoints[0].Addresses, last) {
				t.Errorf("without replicas the bridge has come to %v", s.Endpoints)
			}
		}
	}
}

// TestWhatReplicasReport: a heartbeat says when all was in step, and what is wrong.
func TestWhatReplicasReport(t *testing.T) {
	f := setup(t)
	r := f.replica("one")
	f.ready("one")
	f.until("it leads", func(context.Context) bool { return f.leader() == "one" })
	first, _ := f.heartbeat("one")
	f.until("the next one", func(context.Context) bool { h, _ := f.heartbeat("one"); return h.At.After(first.At) })
	r.stop()
	if f.leader() != "" {
		t.Errorf("%s has ended, and still leads", f.leader())
	}
}
