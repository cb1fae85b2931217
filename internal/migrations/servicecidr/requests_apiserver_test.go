//go:build apiserver && long

package servicecidr

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// counting counts the reads of single Services of the shop, writes of these, and of their
// IPAddresses.
type counting struct {
	client.WithWatch
	reads, services, addresses atomic.Int32
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, is := o.(*corev1.Service); is && key.Namespace == "shop" {
		c.reads.Add(1)
	}
	return c.WithWatch.Get(ctx, key, o, opts...)
}

func (c *counting) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.write(o, (&client.CreateOptions{}).ApplyOptions(opts).DryRun)
	return c.WithWatch.Create(ctx, o, opts...)
}

func (c *counting) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.write(o, (&client.PatchOptions{}).ApplyOptions(opts).DryRun)
	return c.WithWatch.Patch(ctx, o, p, opts...)
}

func (c *counting) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	c.write(o, (&client.DeleteOptions{}).ApplyOptions(opts).DryRun)
	return c.WithWatch.Delete(ctx, o, opts...)
}

func (c *counting) write(o client.Object, dryRun []string) {
	if len(dryRun) > 0 {
		return
	}
	switch o.(type) {
	case *corev1.Service:
		if strings.HasPrefix(o.GetName(), "cart-") { // others are tried and thrown away
			c.services.Add(1)
		}
	case *networkingv1.IPAddress:
		if strings.Contains(o.GetName(), ".3.") { // the canary's are others
			c.addresses.Add(1)
		}
	}
}

// asked are the requests of each Service at most: reads of it and its bridge, writes of these, and
// of IPAddresses.
type asked struct{ reads, services, addresses int32 }

// TestReadsOfAMove: what a write was answered with is not read again. A Service is read before its
// bridge is made and before its first patch, the bridge before that patch; at the end both before
// they are released, and the bridge once more to see it gone. One that etcd moves, and that keeps
// its old address itself, is not read, is written once to add that and once to take it off, and its
// IPAddresses are written in etcd alone.
func TestReadsOfAMove(t *testing.T) {
	for name, tt := range map[string]struct {
		change        func(*v1alpha1.Migration)
		apply, finish asked
	}{
		"hop": {
			change: func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = v1alpha1.BridgeExternalIPs },
			apply:  asked{3, 4, 3}, finish: asked{3, 2, 1},
		},
		"etcd": {
			change: func(m *v1alpha1.Migration) { allByEtcd(m); overlapBy(v1alpha1.OverlapExternalIP)(m) },
			apply:  asked{0, 1, 0}, finish: asked{0, 1, 0},
		},
	} {
		t.Run(name, func(t *testing.T) { readsOfAMove(t, tt.change, tt.apply, tt.finish) })
	}
}

func readsOfAMove(t *testing.T, change func(*v1alpha1.Migration), apply, finish asked) {
	t.Helper()
	const services = 5
	f := setup(t, change)
	for i := range services {
		f.service(fmt.Sprintf("cart-%d", i), at(fmt.Sprintf("10.96.3.%d", 7+i)))
	}
	c := &counting{WithWatch: f.job.Deps.Cluster.WithWatch}
	counted := *f.job.Deps.Cluster
	counted.WithWatch = c
	atMost := func(most asked, act func() error) {
		t.Helper()
		c.reads.Store(0)
		c.services.Store(0)
		c.addresses.Store(0)
		var err error
		f.through(&counted, func() { err = act() })
		f.must(err)
		is := asked{c.reads.Load(), c.services.Load(), c.addresses.Load()}
		if is.reads > most.reads*services || is.services > most.services*services || is.addresses > most.addresses*services {
			t.Errorf("%+v for %d Services, want %+v for each", is, services, most)
		}
	}
	atMost(apply, func() error {
		_, err := f.job.Apply(t.Context(), f.runner)
		return err
	})
	f.again()
	atMost(finish, f.finish)
	f.nothingLeft()
}

// TestBridgeThatOthersEditIsNarrowed: the bridge is written by what the hop has read of it, and
// that is refused if others have changed it since. The control sees the refusal.
func TestBridgeThatOthersEditIsNarrowed(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = v1alpha1.BridgeExternalIPs })
	was := f.service("cart", at("10.96.3.7"))
	f.on(engine.StepStarted, "narrow/shop/cart", func() {
		b := &corev1.Service{}
		f.must(server.Get(t.Context(), services.BridgeKey(was), b))
		b.Annotations["example.com/seen"] = "yes"
		f.must(server.Update(t.Context(), b))
	})
	f.apply()
	f.answersAt(was, "10.96.3.7")
	b := &corev1.Service{}
	f.must(server.Get(t.Context(), services.BridgeKey(was), b))
	if b.Annotations["example.com/seen"] != "yes" {
		t.Error("what others wrote on the bridge is gone")
	}
	refused := false
	for _, e := range f.events {
		refused = refused || e.Kind == engine.StepRetried && e.Step == "narrow/shop/cart"
	}
	if !refused {
		t.Error("the first write was not refused: it did not go by what was known")
	}
}
