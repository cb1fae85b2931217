//go:build apiserver && long

package servicecidr

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// counting counts the reads of single Services of the shop.
type counting struct {
	client.WithWatch
	reads atomic.Int32
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, is := o.(*corev1.Service); is && key.Namespace == "shop" {
		c.reads.Add(1)
	}
	return c.WithWatch.Get(ctx, key, o, opts...)
}

// TestReadsOfAMove: what a write was answered with is not read again. A Service is read before its
// bridge is made and before its first patch, the bridge before that patch; at the end both before
// they are released, and the bridge once more to see it gone. One that etcd moves, and that keeps
// its old address itself, is read once, before that is added.
func TestReadsOfAMove(t *testing.T) {
	for name, tt := range map[string]struct {
		change        func(*v1alpha1.Migration)
		apply, finish int32
	}{
		"hop":  {func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = v1alpha1.BridgeExternalIPs }, 3, 3},
		"etcd": {func(m *v1alpha1.Migration) { allByEtcd(m); overlapBy(v1alpha1.OverlapExternalIP)(m) }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) { readsOfAMove(t, tt.change, tt.apply, tt.finish) })
	}
}

func readsOfAMove(t *testing.T, change func(*v1alpha1.Migration), apply, finish int32) {
	t.Helper()
	const services = 5
	f := setup(t, change)
	for i := range services {
		f.service(fmt.Sprintf("cart-%d", i), at(fmt.Sprintf("10.96.3.%d", 7+i)))
	}
	c := &counting{WithWatch: f.job.Deps.Cluster.WithWatch}
	counted := *f.job.Deps.Cluster
	counted.WithWatch = c
	reads := func(most int32, act func() error) {
		t.Helper()
		c.reads.Store(0)
		var err error
		f.through(&counted, func() { err = act() })
		f.must(err)
		if is := c.reads.Load(); is > most*services {
			t.Errorf("%d reads of Services and bridges, want %d for each of %d", is, most, services)
		}
	}
	reads(apply, func() error {
		_, err := f.job.Apply(t.Context(), f.runner)
		return err
	})
	f.again()
	reads(finish, f.finish)
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
