//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/crash"
)

// thief takes an address the moment replumb gives its hold back.
type thief struct {
	client.WithWatch
	steal func()
	once  sync.Once
}

func (c *thief) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	err := c.WithWatch.Delete(ctx, o, opts...)
	if _, ok := o.(*networkingv1.IPAddress); ok {
		c.once.Do(c.steal)
	}
	return err
}

func TestHopGoesToTheNextAddressWhenTheTargetIsTakenInTheLastMoment(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	p := f.planner()
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	cut := *p.Tools.Cluster
	cut.WithWatch = &thief{WithWatch: server.WithWatch, steal: func() { f.service("thief", at("172.24.3.7")) }}
	p.Tools.Cluster = &cut
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	is := f.get("cart")
	f.sameButAddress(was, is)
	if a := netip.MustParseAddr(is.Spec.ClusterIP); a.String() == "172.24.3.7" || !p.Inventory.Spec.To[0].Contains(a) {
		t.Errorf("at %s", a)
	}
	if got, want := f.answers(was), was.Spec.ClusterIP+" "+is.Spec.ClusterIP; got != want {
		t.Errorf("in the middle of its batch the bridge answers on %s, want %s", got, want)
	}
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Narrow(e, engine.Forward))))
	f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
}

// TestHalfHoppedServiceWhosePodsChanged: its EndpointSlices stay as they were while it is of type
// ExternalName, and must not keep it from going on, nor back.
func TestHalfHoppedServiceWhosePodsChanged(t *testing.T) {
	for _, end := range []string{"172.24.3.7", "10.96.3.7"} {
		f := setup(t)
		f.service("cart", at("10.96.3.7"))
		f.pod("cart-1", "cart", "10.244.0.4")
		f.halfHop()
		f.pod("cart-2", "cart", "10.244.0.5")
		if end == "172.24.3.7" {
			f.apply()
		} else {
			f.again()
			f.must(f.rollback())
		}
		if is := f.get("cart"); is.Spec.ClusterIP != end {
			t.Errorf("at %q, want %s", is.Spec.ClusterIP, end)
		}
	}
}

// halfHop cuts apply off right after the first patch of a hop.
func (f *fixture) halfHop() {
	f.Helper()
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &halver{WithWatch: server.WithWatch}
	var err error
	f.through(&cut, func() { _, err = f.job.Apply(f.Context(), f.runner) })
	if is := f.get("cart"); !errors.Is(err, crash.ErrKilled) || is.Spec.Type != corev1.ServiceTypeExternalName {
		f.Fatalf("%v; service is of type %s", err, is.Spec.Type)
	}
}

// halver lets the first patch of a hop through, and no patch after it.
type halver struct {
	client.WithWatch
	patched bool
}

func (h *halver) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if o.GetName() != "cart" || triesPatch(opts) { // a throw-away Service goes before
		return h.WithWatch.Patch(ctx, o, p, opts...)
	}
	if h.patched {
		return crash.ErrKilled
	}
	h.patched = true
	return h.WithWatch.Patch(ctx, o, p, opts...)
}

// TestOldAddressGivenBackInTheMiddleOfAHop: the API server's repair of IPAddresses, being behind,
// allocated the address to the Service that had just left it.
func TestOldAddressGivenBackInTheMiddleOfAHop(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.halfHop()
	held := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.96.3.7"}}
	f.must(client.IgnoreNotFound(server.Delete(t.Context(), held))) // it is reserved after patch B
	f.must(server.Create(t.Context(), &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.96.3.7", Labels: map[string]string{
			networkingv1.LabelManagedBy: "ipallocator.k8s.io", networkingv1.LabelIPAddressFamily: "IPv4",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: "cart"}},
	}))
	key := types.NamespacedName{Namespace: "shop", Name: bridge.Name(was.Name, was.UID)}
	target := &bridge.Hold{Migration: f.job.Spec.Name, Address: netip.MustParseAddr("172.24.3.7"), Bridge: key}
	f.must(target.Create(t.Context(), f.job.Deps.Client())) // it is released after the other is placed
	f.apply()
	f.checkBridge(was, f.get("cart"), v1alpha1.BridgeLoadBalancer)
}

// TestTargetTakenBetweenTwoRuns: apply was killed while the target had no hold, and another Service
// was given it.
func TestTargetTakenBetweenTwoRuns(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	f.halfHop()
	thief := f.service("thief", at("172.24.3.7"))
	f.apply()
	is := f.get("cart")
	f.sameButAddress(was, is)
	if is.Spec.ClusterIP == "172.24.3.7" || is.Annotations[v1alpha1.AnnotationTargetIP] != is.Spec.ClusterIP {
		t.Errorf("at %s, annotations %v", is.Spec.ClusterIP, is.Annotations)
	}
	f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
	f.again()
	f.must(server.Delete(t.Context(), thief))
	f.must(f.rollback())
	f.rolledBack(was)
}

func TestInterruptedBarrierLeavesNoSentinel(t *testing.T) {
	f := setup(t)
	f.node("deaf", "192.0.2.2")
	f.service("cart")
	p := f.planner()
	f.probe.deaf = map[string]bool{"deaf": true}
	ctx, cancel := context.WithCancel(t.Context())
	runner := &engine.Runner{Sink: func(e engine.Event) {
		if e.Kind == engine.StepWaiting {
			cancel()
		}
	}}
	if err := runner.Run(ctx, single1(p.barriers(engine.Forward).Proof("batch"))); !errors.Is(err, engine.ErrInterrupted) {
		t.Errorf("got %v", err)
	}
	left := &corev1.ServiceList{}
	f.must(server.List(t.Context(), left, client.HasLabels{v1alpha1.LabelRole}))
	if len(left.Items) > 0 {
		t.Errorf("left: %v", left.Items)
	}
}
