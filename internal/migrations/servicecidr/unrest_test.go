//go:build apiserver && long

package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// unrest creates a Service, and deletes one, every 200 ms until stop is called, which returns how
// many there were.
func (f *fixture) unrest() (stop func() int) {
	ctx, cancel := context.WithCancel(f.Context())
	var done sync.WaitGroup
	n := 0
	done.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for ; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			of := func(n int) *corev1.Service {
				return &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("preview-%d", n)},
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}, Selector: map[string]string{"app": "preview"}},
				}
			}
			_ = server.Create(ctx, of(n)) // a range may be full or going
			_ = server.Delete(ctx, of(n-20))
		}
	})
	return func() int {
		cancel()
		done.Wait()
		return n
	}
}

// forgetful plans without knowing which Services have appeared since the migration was recorded.
type forgetful struct{ *Job }

func (k forgetful) Examine(ctx context.Context) (*Planner, error) {
	p, err := k.Job.Examine(ctx)
	if err == nil {
		p.Inventory.Recorded = metav1.Time{}
	}
	return p, err
}

// TestApplyEndsWhereServicesComeAndGo: ten times a second a Service is created and one is deleted,
// some of them in the range that is emptied. Where that range stays open, apply moves what it
// finds; where it goes, it is closed first and has none in it at the end. The control waits for all
// Services to have moved, of which there is no end.
func TestApplyEndsWhereServicesComeAndGo(t *testing.T) {
	for _, tt := range []struct {
		name    string
		from    string
		control bool
	}{
		{name: "range stays"},
		{name: "range goes", from: "172.31.0.0/20"},
		{name: "control", control: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) {
				m.Spec.Batch.Size = 100
				if tt.from != "" {
					m.Spec.ServiceCIDR.From = []string{tt.from}
				}
			})
			if tt.from != "" {
				f.openRange("old", tt.from)
				f.service("cart", at("172.31.3.7"))
			} else {
				f.service("cart", at("10.96.3.7"))
			}
			if tt.control {
				f.job.Kind = forgetful{f.job}
			}
			stop := f.unrest()
			_, err := f.job.Apply(t.Context(), f.runner)
			if n := stop(); n < 5 {
				t.Errorf("only %d Services came meanwhile", n)
			}
			if tt.control {
				if err == nil || !strings.Contains(err.Error(), "did not converge") {
					t.Errorf("the control ended with %v", err)
				}
				return
			}
			f.must(err)
			if ip := f.get("cart").Spec.ClusterIP; !strings.HasPrefix(ip, "172.24.") {
				t.Errorf("cart is at %s", ip)
			}
			if tt.from != "" {
				f.emptied(netip.MustParsePrefix(tt.from))
			}
		})
	}
}

// emptied fails if a Service is left in a range, or a ServiceCIDR of that range.
func (f *fixture) emptied(was netip.Prefix) {
	f.Helper()
	all := &corev1.ServiceList{}
	f.must(server.List(f.Context(), all))
	for i := range all.Items {
		if a, err := netip.ParseAddr(all.Items[i].Spec.ClusterIP); err == nil && was.Contains(a) {
			f.Errorf("service %s is still at %s", all.Items[i].Name, a)
		}
	}
	if strings.Contains(f.ranges(), was.String()) {
		f.Errorf("ranges are %s", f.ranges())
	}
}

// TestRangeIsNotClosedOnWhatStays: a Service that neither moves nor is pinned would keep the range
// in deletion for ever.
func TestRangeIsNotClosedOnWhatStays(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.From = []string{"172.31.0.0/20"} })
	f.openRange("old", "172.31.0.0/20")
	f.service("cart", at("172.31.3.7"))
	f.job.Until = "move"
	f.apply()
	f.job.Until = ""
	stays := f.service(
		"stays",
		at("172.31.3.8"),
		func(s *corev1.Service) { s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: "?"} },
	)
	p, err := f.job.Examine(t.Context())
	f.must(err)
	for _, c := range ranges.ToRetire(p.Inventory) {
		holders, err := p.ranges().Immovable(services.CIDRsOf(c))(t.Context())
		f.must(err)
		if len(holders) != 1 || !strings.Contains(holders[0], "shop/stays (172.31.3.8)") {
			t.Errorf("what stays in %s: %v", c.Name, holders)
		}
	}
	if _, err := f.job.Apply(t.Context(), f.runner); err == nil {
		t.Error("apply went through")
	}
	if got := f.ranges(); !strings.Contains(got, "172.31.0.0/20") || strings.Contains(got, "172.31.0.0/20!") {
		t.Errorf("ranges are %s", got)
	}
	f.must(server.Delete(t.Context(), stays))
	f.apply()
	f.emptied(netip.MustParsePrefix("172.31.0.0/20"))
}

// busyOnce answers lists of Services with an error for a while, as an API server does that is
// restarted.
type busyOnce struct {
	client.WithWatch
	mu   sync.Mutex
	left int
}

func (c *busyOnce) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := list.(*corev1.ServiceList); ok && c.left > 0 {
		c.left--
		return apierrors.NewResourceExpired("the continue parameter is too old")
	}
	return c.WithWatch.List(ctx, list, opts...)
}

// TestLooksBetweenRoundsAreRetried: the API server refuses lists right after the first round. The
// control is refused in the first look, before anything has begun.
func TestLooksBetweenRoundsAreRetried(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	busy := &busyOnce{WithWatch: server.WithWatch, left: 1}
	cut := *f.job.Deps.Cluster
	cut.WithWatch = busy
	f.through(&cut, func() {
		if _, err := f.job.Apply(t.Context(), f.runner); !apierrors.IsResourceExpired(err) {
			t.Errorf("the first look: %v", err)
		}
		first := true
		hold := f.runner.Sink
		f.runner.Sink = func(e engine.Event) {
			hold(e)
			if e.Kind == engine.RunDone && first {
				first = false
				busy.mu.Lock()
				busy.left = 3
				busy.mu.Unlock()
			}
		}
		_, err := f.job.Apply(t.Context(), f.runner)
		f.must(err)
	})
	if busy.left > 0 || !strings.HasPrefix(f.get("cart").Spec.ClusterIP, "172.24.") {
		t.Errorf("%d errors were not met, cart is at %s", busy.left, f.get("cart").Spec.ClusterIP)
	}
}
