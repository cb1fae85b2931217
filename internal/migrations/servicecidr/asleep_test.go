//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// wallClock is the clock of a machine, which goes on while the machine is suspended.
type wallClock struct{ ahead atomic.Int64 }

func (c *wallClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *wallClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// machine is a replumb whose process is suspended right before its first write of a kind, until it
// is woken up.
type machine struct {
	client.WithWatch
	clock  wallClock
	writes func(verb string, o client.Object) bool
	// unfenced has it write without asking whether it still holds the lock, as it would without a
	// fence.
	unfenced bool

	once        sync.Once
	asleep, sun chan struct{}
}

func newMachine(writes func(verb string, o client.Object) bool) *machine {
	return &machine{WithWatch: server.WithWatch, writes: writes, asleep: make(chan struct{}), sun: make(chan struct{})}
}

func (m *machine) before(ctx context.Context, verb string, o client.Object) context.Context {
	if m.writes(verb, o) {
		m.sleep()
	}
	if m.unfenced {
		return engine.Fenced(ctx, nil)
	}
	return ctx
}

func (m *machine) sleep() {
	m.once.Do(func() {
		close(m.asleep)
		<-m.sun
	})
}

// wake ends the sleep, an hour later by the clock on the wall.
func (m *machine) wake() {
	m.clock.ahead.Add(int64(time.Hour))
	close(m.sun)
}

func (m *machine) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return m.WithWatch.Create(m.before(ctx, "create", o), o, opts...)
}

func (m *machine) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if triesPatch(opts) {
		return m.WithWatch.Patch(ctx, o, p, opts...)
	}
	return m.WithWatch.Patch(m.before(ctx, "patch", o), o, p, opts...)
}

// Update holds renewals of the lock up with everything else. Unfenced it believes to have it for
// ever.
func (m *machine) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if _, ok := o.(*coordinationv1.Lease); ok {
		if m.unfenced {
			return nil
		}
		select {
		case <-m.asleep:
			<-m.sun
		default:
		}
	}
	return m.WithWatch.Update(ctx, o, opts...)
}

func (m *machine) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	return m.WithWatch.Delete(m.before(ctx, "delete", o), o, opts...)
}

// on another machine, the same migration.
func (f *fixture) elsewhere(m *machine) (*Job, *engine.Runner) {
	f.Helper()
	tools := Deps{Deps: migration.Deps{Cluster: server.Cluster}, Probe: f.probe, Inspector: apiserver.New(server.Config)}
	if m != nil {
		cut := *server.Cluster
		cut.WithWatch = m
		tools.Cluster, tools.Clock = &cut, &m.clock
	}
	job, err := NewJob(tools, sample())
	f.must(err)
	job.Holder = migrationtest.Killed()
	return job, &engine.Runner{Deadline: 10 * time.Second}
}

// in the background.
func begin(do func() error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- do() }()
	return ended
}

// patchA is the first write to the Service.
func patchA(verb string, o client.Object) bool {
	return verb == "patch" && o.GetNamespace() == "shop" && o.GetName() == "cart"
}

// TestWokenBeforeThePatch: one process falls asleep right before the first patch of a hop. Another
// takes the migration back; when the first wakes up the Service is at its old address again, with
// its bridge still there. Without a fence it hops once more, under the hands of the other.
func TestWokenBeforeThePatch(t *testing.T) {
	for _, unfenced := range []bool{false, true} {
		f := setup(t)
		was := f.service("cart", at("10.96.3.7"))
		m := newMachine(patchA)
		m.unfenced = unfenced
		a, runnerA := f.elsewhere(m)
		first := begin(func() error { _, err := a.Apply(t.Context(), runnerA); return err })
		<-m.asleep
		b, runnerB := f.elsewhere(nil)
		middle, on := make(chan struct{}), make(chan struct{})
		inTheMiddle := sync.OnceFunc(func() { close(middle) })
		runnerB.Sink = func(e engine.Event) {
			if e.Kind == engine.PhaseStarted && e.Phase == "release" && e.Total > 0 {
				inTheMiddle()
				<-on
			}
		}
		second := begin(func() error { return b.Rollback(t.Context(), runnerB) })
		select {
		case <-middle:
		case err := <-second:
			t.Fatalf("the rollback ended before it released anything: %v", err)
		}
		m.wake()
		err := <-first
		there := f.get("cart").Spec.ClusterIP
		close(on)
		back := <-second
		if unfenced {
			if there == was.Spec.ClusterIP {
				t.Error("control: without a fence the woken process has not moved the Service")
			}
			continue
		}
		if !errors.As(err, new(*lease.LostError)) || !errors.Is(err, engine.ErrInterrupted) || there != was.Spec.ClusterIP {
			t.Errorf("the woken process ended with %v, and the Service at %s", err, there)
		}
		f.must(back)
		f.rolledBack(was)
	}
}

// TestWokenBeforeTheHold: asleep right after the first patch, while another has given the Service
// its old address back. Even without a fence the address stays the Service's: the control takes it
// for one that was given back by mistake, and frees it.
func TestWokenBeforeTheHold(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	m := newMachine(func(verb string, o client.Object) bool { return verb == "create" && o.GetName() == "10.96.3.7" })
	m.unfenced = true
	a, runner := f.elsewhere(m)
	first := begin(func() error { _, err := a.Apply(t.Context(), runner); return err })
	<-m.asleep
	f.again()
	f.must(f.rollback())
	owned := &networkingv1.IPAddress{}
	f.must(server.Get(t.Context(), client.ObjectKey{Name: "10.96.3.7"}, owned))
	m.wake()
	if err := <-first; err == nil {
		t.Error("the woken process went through")
	}
	is := &networkingv1.IPAddress{}
	if err := server.Get(t.Context(), client.ObjectKey{Name: "10.96.3.7"}, is); err != nil || is.UID != owned.UID {
		t.Errorf("the address of the Service is %v, %v", is.UID, err)
	}
	if svc := f.get("cart"); svc.Spec.ClusterIP != was.Spec.ClusterIP {
		t.Errorf("the Service is at %q", svc.Spec.ClusterIP)
	}

	naive := func() error { // frees what belongs to the Service, as if it had left
		if bridge.ParentOf(is) != "services shop/cart" {
			return errors.New("not the Service's")
		}
		return server.Delete(t.Context(), is, client.Preconditions{UID: &is.UID})
	}
	if err := naive(); err != nil || f.owner("10.96.3.7") != "" || f.get("cart").Spec.ClusterIP != "10.96.3.7" {
		t.Errorf("control: %v; the address belongs to %q", err, f.owner("10.96.3.7"))
	}
}

// TestWokenBeforeTheFinalStep: finish is asleep when another takes the migration back. It then
// passes no point of no return, and the migration can be applied again. The control writes the
// status as it is asked to.
func TestWokenBeforeTheFinalStep(t *testing.T) {
	for _, unfenced := range []bool{false, true} {
		f := setup(t)
		was := f.service("cart", at("10.96.3.7"))
		f.apply()
		m := newMachine(func(string, client.Object) bool { return false })
		m.unfenced = unfenced
		a, runner := f.elsewhere(m)
		runner.Sink = func(e engine.Event) {
			if e.Kind == engine.StepStarted && e.Step == "final" {
				m.sleep()
			}
		}
		first := begin(func() error { return a.Finish(t.Context(), runner) })
		<-m.asleep
		f.must(f.rollback())
		f.rolledBack(was)
		m.wake()
		err := <-first
		if err == nil || f.again().Status.PointOfNoReturnPassed {
			t.Errorf("unfenced %t: the woken process ended with %v; status %+v", unfenced, err, f.again().Status)
		}
		f.apply()

		f.must(f.rollback())
		f.must(migration.UpdateStatus(t.Context(), server, "m", func(st *v1alpha1.MigrationStatus) { st.PointOfNoReturnPassed = true }))
		_, err = f.job.Apply(t.Context(), f.runner)
		var state *migration.StateError
		if !errors.As(err, &state) || !errors.As(f.rollback(), &state) || !errors.As(f.finish(), &state) {
			t.Errorf("control: some command takes it: %v", err)
		}
	}
}

// TestWokenBeforeTheBarrier: asleep before it asks nodes, while another has taken over and asks
// them itself. The sentinel of the other stays, and its run goes on. Without a fence the woken
// process takes it for what an earlier run has left.
func TestWokenBeforeTheBarrier(t *testing.T) {
	for _, unfenced := range []bool{false, true} {
		f := setup(t)
		f.node("a", "192.0.2.1")
		f.service("cart", at("10.96.3.7"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := newMachine(func(string, client.Object) bool { return false })
		m.unfenced = unfenced
		a, runnerA := f.elsewhere(m)
		runnerA.Sink = func(e engine.Event) {
			if e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "barrier/") {
				m.sleep()
			}
		}
		first := begin(func() error { _, err := a.Apply(ctx, runnerA); return err })
		<-m.asleep
		b, runnerB := f.elsewhere(nil)
		asks := make(chan struct{})
		asking := sync.OnceFunc(func() { close(asks) })
		runnerB.Sink = func(e engine.Event) {
			switch {
			case !strings.HasPrefix(e.Step, "barrier/"):
			case e.Kind == engine.StepStarted:
				f.hears("a", false)
			case e.Kind == engine.StepWaiting:
				asking()
			}
		}
		second := begin(func() error { _, err := b.Apply(ctx, runnerB); return err })
		select {
		case <-asks:
		case err := <-second:
			t.Fatalf("the other ended before it asked: %v", err)
		}
		sentinels := &corev1.ServiceList{}
		f.must(server.List(t.Context(), sentinels, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSentinel}))
		if len(sentinels.Items) != 1 {
			t.Fatalf("sentinels: %v", sentinels.Items)
		}
		gone := func() bool {
			return apierrors.IsNotFound(server.Get(t.Context(), client.ObjectKeyFromObject(&sentinels.Items[0]), &corev1.Service{}))
		}
		m.wake()
		if unfenced {
			f.eventually("control: the sentinel of the other to go", func() error {
				if !gone() {
					return errNotYet
				}
				return nil
			})
			cancel()
			_, _ = <-first, <-second // how they end says nothing here
			continue
		}
		if err := <-first; !errors.As(err, new(*lease.LostError)) || gone() {
			t.Errorf("the woken process ended with %v; the sentinel of the other is gone: %t", err, gone())
		}
		f.hears("a", true)
		f.must(<-second)
		if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
			t.Errorf("at %s", is.Spec.ClusterIP)
		}
	}
}

// hears says whether a node answers for sentinels.
func (f *fixture) hears(node string, yes bool) {
	f.probe.mu.Lock()
	defer f.probe.mu.Unlock()
	f.probe.deaf = map[string]bool{node: !yes}
}

// TestRolledBackWhileFinishPasses: rollback looks under its lock whether there is a way back.
func TestRolledBackWhileFinishPasses(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.apply()
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &atLock{WithWatch: server.WithWatch, do: func() {
		f.must(migration.UpdateStatus(t.Context(), server, "m", func(st *v1alpha1.MigrationStatus) { st.PointOfNoReturnPassed = true }))
	}}
	var state *migration.StateError
	f.through(&cut, func() {
		if err := f.rollback(); !errors.As(err, &state) {
			t.Errorf("got %v", err)
		}
	})
	if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("at %s", is.Spec.ClusterIP)
	}
}

// TestClockOfTheAPIServer: on a machine whose clock is wrong, moves are dated by the API server's.
// The control is that clock by itself.
func TestClockOfTheAPIServer(t *testing.T) {
	for _, off := range []time.Duration{-5 * time.Minute, 5 * time.Minute} {
		f := setup(t)
		t.Cleanup(func() {
			server.Synchronize(context.Background(), func() time.Time { return time.Now().Add(server.Skew()) })
		})
		f.service("cart", at("10.96.3.7"))
		wrong := &wallClock{}
		wrong.ahead.Store(int64(off))
		job, err := NewJob(Deps{
			Deps: migration.Deps{
				Cluster: crash.Watch(t, server.Cluster),
				Clock:   wrong,
			},
			Probe:     f.probe,
			Inspector: apiserver.New(server.Config),
		}, sample())
		f.must(err)
		job.Holder = migrationtest.Killed()
		f.job = job
		f.apply()
		held := &networkingv1.IPAddress{}
		f.must(server.Get(t.Context(), client.ObjectKey{Name: "10.96.3.7"}, held))
		moved, err := time.Parse(time.RFC3339Nano, f.get("cart").Annotations[v1alpha1.AnnotationMovedAt])
		f.must(err)
		const near = time.Minute // dates are known to a second and the time of an answer, which a busy machine makes long
		if apart := moved.Sub(held.CreationTimestamp.Time).Abs(); apart > near {
			t.Errorf("%s off: moved at %s, %s from what the API server says", off, moved, apart)
		}
		if apart := wrong.Now().Sub(held.CreationTimestamp.Time).Abs(); apart < near {
			t.Errorf("control: the clock is only %s off", apart)
		}
		p, err := job.Examine(t.Context())
		f.must(err)
		if at, counts := arrival(p.Inventory.Moves[0], engine.Forward, p.Tools.Now()); !counts || p.Tools.Now().Sub(at) < -near {
			t.Errorf("%s off: moved at %s, which is to come", off, at)
		}
	}
}
