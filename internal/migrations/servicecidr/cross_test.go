//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/testing/crash"
)

// requests of steps, by step, in their order.
type requests struct {
	client.WithWatch
	mu   sync.Mutex
	made map[string][]string
}

func (r *requests) note(ctx context.Context, verb, name string) {
	step := engine.Current(ctx)
	if step == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		r.made = map[string][]string{}
	}
	r.made[step.ID()] = append(r.made[step.ID()], verb+" "+name)
}

func (r *requests) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	r.note(ctx, "get", key.Name)
	return r.WithWatch.Get(ctx, key, o, opts...)
}

func (r *requests) List(ctx context.Context, o client.ObjectList, opts ...client.ListOption) error {
	r.note(ctx, "list", fmt.Sprintf("%T", o))
	return r.WithWatch.List(ctx, o, opts...)
}

func (r *requests) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	r.note(ctx, "create", o.GetName())
	return r.WithWatch.Create(ctx, o, opts...)
}

func (r *requests) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	r.note(ctx, "patch", o.GetName())
	return r.WithWatch.Patch(ctx, o, p, opts...)
}

func (r *requests) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	r.note(ctx, "delete", o.GetName())
	return r.WithWatch.Delete(ctx, o, opts...)
}

// between are the requests of a step between its two patches of a Service.
func (r *requests) between(step, service string) ([]string, error) {
	all, patch := r.made[step], "patch "+service
	first := slices.Index(all, patch)
	if first < 0 {
		return nil, fmt.Errorf("%s made no patch: %v", step, all)
	}
	second := slices.Index(all[first+1:], patch)
	if second < 0 {
		return nil, fmt.Errorf("%s made one patch: %v", step, all)
	}
	return all[first+1 : first+1+second], nil
}

// TestNothingComesBetweenThePatches, in either direction: watchers see a Service without an address
// for no longer than the API server takes for patch B. The control is a hop that a run was cut off
// in and another completes, which reserves first.
func TestNothingComesBetweenThePatches(t *testing.T) {
	const services = 6
	f := setup(t)
	for i := range services {
		f.service(fmt.Sprintf("cart-%d", i), at(fmt.Sprintf("10.96.3.%d", 7+i)))
	}
	r := &requests{WithWatch: f.job.Deps.Cluster.WithWatch}
	watched := *f.job.Deps.Cluster
	watched.WithWatch = r
	f.through(&watched, func() {
		f.apply()
		f.must(f.rollback())
	})
	for i := range services {
		name := fmt.Sprintf("cart-%d", i)
		for _, step := range []string{"hop/shop/" + name, "return/shop/" + name} {
			if came, err := r.between(step, name); err != nil || len(came) > 0 {
				t.Errorf("%s: %v came between its patches, %v", step, came, err)
			}
		}
	}

	f = setup(t)
	f.service("cart", at("10.96.3.7"))
	p := f.planner()
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	r = &requests{WithWatch: p.Tools.Cluster.WithWatch}
	slow := *p.Tools.Cluster
	slow.WithWatch = &oneWay{WithWatch: r, once: engine.NotYet("cut off")}
	p.Tools.Cluster = &slow
	h := p.steps(engine.Forward).Hop(e, engine.Forward)
	f.must((&engine.Runner{}).Run(t.Context(), single1(h)))
	if came, err := r.between(h.ID(), "cart"); err != nil || len(came) == 0 {
		t.Errorf("control: %v came between the patches, %v", came, err)
	}
}

// TestKilledBeforeTheAddressLeftIsReserved: apply is killed right after patch B. The next one
// reserves the address all the same.
func TestKilledBeforeTheAddressLeftIsReserved(t *testing.T) {
	for _, back := range []bool{false, true} {
		f := setup(t)
		was := f.service("cart", at("10.96.3.7"))
		cut := *f.job.Deps.Cluster
		cut.WithWatch = &unreserved{WithWatch: server.WithWatch, address: "10.96.3.7"}
		var err error
		f.through(&cut, func() { _, err = f.job.Apply(t.Context(), f.runner) })
		if is := f.get("cart"); !errors.Is(err, crash.ErrKilled) || is.Spec.ClusterIP != "172.24.3.7" || f.owner("10.96.3.7") != "" {
			t.Fatalf("%v; at %s, and its old address belongs to %q", err, is.Spec.ClusterIP, f.owner("10.96.3.7"))
		}
		if back {
			f.again()
			f.must(f.rollback())
			f.rolledBack(was)
			continue
		}
		f.apply()
		f.checkBridge(was, f.get("cart"), v1alpha1.BridgeLoadBalancer)
	}
}

// TestHopReservesInALaterAttempt: what reserves the address left behind fails once, after patch B;
// the step makes up for it.
func TestHopReservesInALaterAttempt(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	p := f.planner()
	e := p.Inventory.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Bridge(e))))
	cut := *p.Tools.Cluster
	cut.WithWatch = &unreserved{WithWatch: server.WithWatch, address: "10.96.3.7", once: engine.NotYet("busy")}
	p.Tools.Cluster = &cut
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward))))
	if got, want := f.owner("10.96.3.7"), "services shop/"+services.BridgeKey(was).Name; got != want {
		t.Errorf("the old address belongs to %q, want %q", got, want)
	}
}

// unreserved refuses to reserve an address: every time, or once with an error.
type unreserved struct {
	client.WithWatch
	address string
	once    error
}

func (u *unreserved) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if _, is := o.(*networkingv1.IPAddress); is && o.GetName() == u.address {
		if err := u.once; err != nil {
			u.once, u.address = nil, ""
			return err
		}
		return crash.ErrKilled
	}
	return u.WithWatch.Create(ctx, o, opts...)
}

var moving = flag.Int("moving", 32, "how many Services TestWindowOfWatchers moves, in one batch")

// TestWindowOfWatchers tells, with -v, how long watchers see a Service as ExternalName, beside what
// a patch by itself takes meanwhile. It fails if a watcher misses a hop; times are only told.
func TestWindowOfWatchers(t *testing.T) {
	services := *moving
	f := setup(t)
	f.job.Spec.Batch = services
	for i := range services {
		f.service(fmt.Sprintf("cart-%d", i), at(fmt.Sprintf("10.96.%d.%d", 3+i/200, 7+i%200)))
	}
	seen := make(chan time.Duration, services)
	w, err := server.Watch(t.Context(), &corev1.ServiceList{}, client.InNamespace("shop"))
	f.must(err)
	t.Cleanup(w.Stop)
	go func() {
		left := map[string]time.Time{}
		for e := range w.ResultChan() {
			svc, is := e.Object.(*corev1.Service)
			if !is {
				continue
			}
			if svc.Spec.Type == corev1.ServiceTypeExternalName {
				left[svc.Name] = time.Now()
			} else if at, was := left[svc.Name]; was {
				delete(left, svc.Name)
				seen <- time.Since(at)
			}
		}
		close(seen)
	}()
	var patches []time.Duration
	over := make(chan struct{})
	bare := make(chan struct{})
	go func() {
		defer close(bare)
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			default:
			}
			ns := &corev1.Namespace{}
			ns.Name = "shop"
			began := time.Now()
			body := fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n)
			if server.Patch(context.WithoutCancel(t.Context()), ns, client.RawPatch("application/merge-patch+json", body)) == nil {
				patches = append(patches, time.Since(began))
			}
		}
	}()
	f.apply()
	close(over)
	<-bare
	windows := make([]time.Duration, services)
	for i := range windows {
		window, is := <-seen
		if !is {
			t.Fatal("the watch broke off")
		}
		windows[i] = window
	}
	slices.Sort(windows)
	slices.Sort(patches)
	t.Logf("%d Services: without an address for %s median, %s at most; a patch beside them takes %s median, %s at most of %d",
		services, windows[services/2], windows[services-1], patches[len(patches)/2], patches[len(patches)-1], len(patches))
}
