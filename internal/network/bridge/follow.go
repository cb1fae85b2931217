package bridge

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// headStart is how long a follower that does not lead gives the one that does.
	headStart = 400 * time.Millisecond
	// retryMin and retryMax bound the pause after failures, which doubles.
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
	// writers is how many bridges are written at once.
	writers = 8
)

// Follow is Follower.Run for the only follower of a migration. report gets failures that outlast a
// second attempt, and nil once none is left; never concurrently.
func Follow(ctx context.Context, c client.WithWatch, migration string, report func(error)) {
	(&Follower{Client: c, Migration: migration, Report: report}).Run(ctx)
}

// Follower keeps bridges in step with their Services: selector, ports and whatever else directs
// requests, and endpoints of Services without selector. It decides by its watches alone. Several
// may run: they write the same, to the version that was seen.
//
// Editors of Services can fake a bridge, so a bridge needs an address that replumb has reserved for
// it and a name made of the UID of a Service beside it. Of addresses it writes those alone
// that are reserved for them, and type and owner of a bridge never.
type Follower struct {
	Client    client.WithWatch
	Migration string
	// Leads reports whether this follower writes at once; others wait 400 ms. Nil: always.
	Leads func() bool
	// Report gets failures that outlast a second attempt, and nil once none is left; never
	// concurrently.
	Report func(error)
	// Told, if set, hears of each address that was put back on a Service, or given to one.
	Told func(string)
	// Locked reports whether a run is at work. Without it, hops that a run was cut off in are left
	// alone.
	Locked func(context.Context) (bool, error)
	// Addressless is for how long a Service may be between the patches of a hop; default: 20 s.
	Addressless time.Duration

	once  sync.Once
	view  *view
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	// late are the bridges that are out of step, since when.
	late map[types.NamespacedName]time.Time
	// away are the Services that are between the patches of a hop.
	away map[types.NamespacedName]absence
	// failures are reported errors of bridges and watches; broken is since when watches fail.
	failures map[types.NamespacedName]string
	broken   map[types.NamespacedName]time.Time
}

// FollowerStatus is where a follower stands.
type FollowerStatus struct {
	// Synced says that it has seen everything there is.
	Synced bool
	// Late is how many bridges are out of step, Since the time from which on the first of them is.
	Late  int
	Since time.Time
	// Blind is the time from which on nothing can be watched of some kind; zero if everything is.
	Blind time.Time
	// Problem is a failure that lasts; empty if there is none.
	Problem string
}

func (f *Follower) begin() {
	f.once.Do(func() {
		f.late, f.failures = map[types.NamespacedName]time.Time{}, map[types.NamespacedName]string{}
		f.broken, f.away = map[types.NamespacedName]time.Time{}, map[types.NamespacedName]absence{}
		f.queue = workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryMin, retryMax),
		)
		f.view = newView(f)
	})
}

// Run follows until ctx ends, and repeats what fails.
func (f *Follower) Run(ctx context.Context) {
	f.begin()
	// Failures of watches are reported by watched; the library would print them between others.
	ctx = klog.NewContext(ctx, klog.Logger{})
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range f.view.sources() {
		running.Go(func() { s.reflector.RunWithContext(ctx) })
	}
	context.AfterFunc(ctx, f.queue.ShutDown)
	select {
	case <-ctx.Done():
		return
	case <-f.view.synced:
	}
	for _, key := range f.view.reserved() {
		f.queue.Add(key)
	}
	for range writers {
		running.Go(func() {
			for f.next(ctx) {
			}
		})
	}
}

func (f *Follower) Status() FollowerStatus {
	f.begin()
	f.mu.Lock()
	defer f.mu.Unlock()
	s := FollowerStatus{Synced: f.view.complete(), Late: len(f.late)}
	for _, since := range f.late {
		s.Since = earlier(s.Since, since)
	}
	for _, since := range f.broken {
		s.Blind = earlier(s.Blind, since)
	}
	for _, problem := range f.failures {
		s.Problem = max(s.Problem, problem) // any, and the same every time
	}
	return s
}

// APIServers are the endpoints of Service kubernetes as IP:port, as far as seen.
func (f *Follower) APIServers() []string {
	f.begin()
	return f.view.apiServers()
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// next syncs one bridge; false once the queue is shut down.
func (f *Follower) next(ctx context.Context) bool {
	key, end := f.queue.Get()
	if end {
		return false
	}
	defer f.queue.Done(key)
	if s := f.view.lookBetween(key); s == nil {
		f.mu.Lock()
		delete(f.away, key)
		f.mu.Unlock()
	} else if f.Locked != nil {
		f.bringBack(ctx, key, s)
	}
	d := f.view.look(key)
	if d == nil {
		f.inStep(ctx, key)
		return true
	}
	if wait := f.turn(key, d); wait > 0 {
		f.queue.AddAfter(key, wait)
		return true
	}
	err := d.write(ctx, f.Client)
	// A conflict means an event to come, which queues the bridge again or shows it in step.
	if err != nil && f.queue.NumRequeues(key) > 0 && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		f.note(ctx, key, err)
	}
	f.queue.AddRateLimited(key) // to see that it is in step now
	return true
}

func (f *Follower) inStep(ctx context.Context, key types.NamespacedName) {
	f.queue.Forget(key)
	f.mu.Lock()
	delete(f.late, key)
	f.mu.Unlock()
	f.note(ctx, key, nil)
}

// turn is the wait before a bridge out of step is written.
func (f *Follower) turn(key types.NamespacedName, d *due) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, known := f.late[key]
	if !known {
		since = time.Now()
		f.late[key] = since
	}
	wait := headStart
	if f.Leads == nil || f.Leads() {
		wait = 0
	}
	if d.own != nil { // a run that is at work adds the address itself, right after it has reserved it
		wait += ownPatience
	}
	return wait - time.Since(since)
}

func (f *Follower) watched(ctx context.Context, what string, err error) {
	source := types.NamespacedName{Name: what}
	f.mu.Lock()
	_, known := f.broken[source]
	switch {
	case err == nil:
		delete(f.broken, source)
	case !known:
		f.broken[source] = time.Now()
	}
	f.mu.Unlock()
	f.note(ctx, source, err)
}

func (f *Follower) note(ctx context.Context, what types.NamespacedName, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, failed := f.failures[what]
	switch {
	case ctx.Err() != nil:
	case err == nil && failed:
		if delete(f.failures, what); len(f.failures) == 0 && f.Report != nil {
			f.Report(nil)
		}
	case err != nil && err.Error() != before:
		f.failures[what] = err.Error()
		if f.Report != nil {
			f.Report(err)
		}
	}
}
