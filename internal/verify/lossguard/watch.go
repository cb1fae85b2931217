package lossguard

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/verify/agentset"
)

const (
	// lookEvery is how often nodes are listed and silence is looked for.
	lookEvery = 2 * time.Second
	// writeEvery is how often the status of the Migration is written while nothing is lost.
	writeEvery = 10 * time.Second
	// again is the pause before NodeReports are listed anew.
	again = 500 * time.Millisecond
)

// Observer is told of losses at once, of requests per probe and stretch of time, over all nodes, of who uses old addresses on a
// node, as often as its agent says so, and of what checks found.
type Observer interface {
	Loss(loss v1alpha1.Loss)
	Sample(sample Sample)
	Clients(node string, clients []v1alpha1.OldAddressClient)
	// Findings are those of a look at the cluster.
	Findings(all findings.Findings)
}

// Watch follows the NodeReports of a migration while a run goes on, and stops the run when more is lost than its budget, or when an
// agent falls silent.
type Watch struct {
	Client    client.WithWatch
	Migration string
	// Budget is how many failed requests are tolerated.
	Budget int
	// Patience is how long a ready node may be silent.
	Patience time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// Ended, if set, names an agent that others call and that has ended since a time; nothing if there is none.
	Ended func(ctx context.Context, since time.Time) string
	// Observer, if set, is told of what is seen.
	Observer Observer
	// Status, if set, changes the status of the Migration.
	Status func(context.Context, func(*v1alpha1.MigrationStatus)) error
	// Lenient watches and tells, and never stops a run: on the way back there is no better place to stop at.
	Lenient bool

	mu sync.Mutex
	// reason finds out why an agent is silent; nil if nobody does.
	reason  func(ctx context.Context, node string, origin v1alpha1.ProbeOrigin) agentset.Silent
	tally   *Tally
	samples samples
	nodes   []corev1.Node
	listed  bool
	since   map[Agent]time.Time
	changed chan struct{}
	// expecting is true from when agents have to be there.
	expecting bool
	wrote     time.Time
}

// Start follows until stop is called. The context it returns is cancelled, with a *LossError or *agents.SilentError as its cause, when the run
// must not go on.
func (w *Watch) Start(ctx context.Context) (guarded context.Context, stop func()) {
	w.mu.Lock()
	w.tally, w.changed, w.since, w.expecting = NewTally(), make(chan struct{}), map[Agent]time.Time{}, false
	w.samples, w.listed = samples{}, false
	w.mu.Unlock()
	guarded, cancel := context.WithCancelCause(ctx)
	following, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.follow(following, cancel) })
	running.Go(func() { w.look(following, cancel) })
	return guarded, func() {
		end()
		running.Wait()
		w.flush()
		last, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		w.write(last)
		cancel(nil)
	}
}

func (w *Watch) now() time.Time {
	if w.Now != nil {
		return w.Now()
	}
	return time.Now()
}

func (w *Watch) selector() client.ListOption {
	return client.MatchingLabels{v1alpha1.LabelMigration: w.Migration}
}

// follow lists and watches NodeReports for as long as ctx lasts.
func (w *Watch) follow(ctx context.Context, cancel context.CancelCauseFunc) {
	_ = wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (bool, error) {
		all := &v1alpha1.NodeReportList{}
		if err := w.Client.List(ctx, all, w.selector()); err != nil {
			return false, nil // the definition is not there yet, or the API server is away: silence is told elsewhere
		}
		w.resync(all.Items, cancel)
		events, err := w.Client.Watch(ctx, &v1alpha1.NodeReportList{}, w.selector(),
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}})
		if err != nil {
			return false, nil // as above
		}
		defer events.Stop()
		for e := range events.ResultChan() {
			w.event(e, cancel)
		}
		return false, nil
	})
}

// resync takes a whole list.
func (w *Watch) resync(all []v1alpha1.NodeReport, cancel context.CancelCauseFunc) {
	w.mu.Lock()
	for _, known := range w.tally.Reports() {
		if !slices.ContainsFunc(all, func(r v1alpha1.NodeReport) bool { return r.Name == known.Name }) {
			w.tally.Forget(known.Name)
		}
	}
	w.mu.Unlock()
	for i := range all {
		w.take(&all[i], cancel)
	}
}

func (w *Watch) event(e watch.Event, cancel context.CancelCauseFunc) {
	r, ok := e.Object.(*v1alpha1.NodeReport)
	switch {
	case !ok:
	case e.Type == watch.Deleted:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.tally.Forget(r.Name)
		w.signal()
	default:
		w.take(r, cancel)
	}
}

// take adds a report, and ends the run if it is one too many.
func (w *Watch) take(r *v1alpha1.NodeReport, cancel context.CancelCauseFunc) {
	w.mu.Lock()
	fresh := w.tally.Take(r, w.now())
	samples := w.samples.take(r)
	failed, losses := w.tally.Failed, slices.Clone(w.tally.Losses)
	w.signal()
	w.mu.Unlock()
	w.tell(samples, fresh)
	if w.Observer != nil && len(r.Status.Clients) > 0 {
		w.Observer.Clients(r.Name, r.Status.Clients)
	}
	if len(fresh) > 0 && failed > int64(w.Budget) && !w.Lenient {
		slices.Reverse(losses)
		cancel(&LossError{Migration: w.Migration, Failed: failed, Budget: w.Budget, Losses: losses})
	}
}

// signal wakes those who wait for news. The caller holds the lock.
func (w *Watch) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *Watch) flush() {
	w.mu.Lock()
	rest := w.samples.rest()
	w.mu.Unlock()
	w.tell(rest, nil)
}

func (w *Watch) tell(samples []Sample, losses []v1alpha1.Loss) {
	if w.Observer == nil {
		return
	}
	for _, s := range samples {
		w.Observer.Sample(s)
	}
	for _, l := range losses {
		w.Observer.Loss(l)
	}
}

// until waits for news as long as a condition does not hold, but not for longer than a moment, and returns what is missing.
func (w *Watch) until(ctx context.Context, moment time.Duration, missing func(*Tally) []string) []string {
	timer := time.NewTimer(moment)
	defer timer.Stop()
	for {
		w.mu.Lock()
		left, changed := missing(w.tally), w.changed
		w.mu.Unlock()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return left
		case <-ctx.Done():
			return left
		}
	}
}

// Reports are the latest of all nodes, by name.
func (w *Watch) Reports() []v1alpha1.NodeReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tally == nil {
		return nil
	}
	return w.tally.Reports()
}
