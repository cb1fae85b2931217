package lossguard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
)

// Observer hears of losses, samples over all nodes, clients of old addresses, and findings.
type Observer interface {
	Loss(loss v1alpha1.Loss)
	Sample(sample Sample)
	Clients(node string, clients []v1alpha1.OldAddressClient)
	// Findings are those of a look at the cluster.
	Findings(all findings.Findings)
}

// Diagnosis finds out what has become of agents.
type Diagnosis interface {
	// Why an agent is silent.
	Why(ctx context.Context, node string, origin v1alpha1.ProbeOrigin) agentset.Silent
	// Ended names an agent that others call and that ended since a time; empty for none.
	Ended(ctx context.Context, since time.Time) string
}

// Watch follows NodeReports, and stops the run when too much is lost or an agent is silent.
type Watch struct {
	Client    client.WithWatch
	Migration string
	Budget    int
	// LateBudget is how many late answers are tolerated; nil is any number.
	LateBudget *int
	// Patience is how long a ready node may be silent.
	Patience time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// Observer, if set, hears of what is seen.
	Observer Observer
	// Status, if set, changes the status of the Migration.
	Status func(context.Context, func(*v1alpha1.MigrationStatus)) error
	// Lenient never stops a run: on the way back there is no better place to stop at.
	Lenient bool

	nodes watchedNodes

	mu        sync.Mutex
	latest    *reports
	diagnosis Diagnosis
}

// Start follows until stop. It cancels the context with a *LossError, *agentset.SilentError or
// *NotMeasuredError.
func (w *Watch) Start(ctx context.Context) (guarded context.Context, stop func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	seen := newReports(w.now, func(r *v1alpha1.NodeReport, n news) { w.arrived(r, n, cancel) })
	w.mu.Lock()
	w.latest = seen
	w.mu.Unlock()
	w.nodes.reset()
	following, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { seen.follow(following, w.Client, w.Migration) })
	running.Go(func() { w.look(following, cancel) })
	running.Go(func() { w.identify(following, seen) })
	return guarded, func() {
		end()
		running.Wait()
		w.observe(seen.rest(), w.settle(w.now().Add(leaveWithin)).losses)
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

// seen is what was reported since the latest run began, or an empty account before the first.
func (w *Watch) seen() *reports {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest == nil {
		w.latest = newReports(w.now, func(*v1alpha1.NodeReport, news) {})
	}
	return w.latest
}

func (w *Watch) arrived(r *v1alpha1.NodeReport, n news, cancel context.CancelCauseFunc) {
	w.observe(n.samples, n.losses)
	w.judge(n, cancel)
	if w.Observer != nil && len(r.Status.Clients) > 0 {
		w.Observer.Clients(r.Name, r.Status.Clients)
	}
}

// judge stops the run if what is new is too much.
func (w *Watch) judge(n news, cancel context.CancelCauseFunc) {
	switch {
	case len(n.losses) > 0 && w.spent(n.failed, 0):
		slices.Reverse(n.latest)
		cancel(&LossError{Migration: w.Migration, Failed: n.failed, Budget: w.Budget, Losses: n.latest})
	case w.spent(0, n.late):
		cancel(&LossError{Migration: w.Migration, Late: n.late, Budget: *w.LateBudget, Lates: n.lates})
	}
}

// settle counts what was held against nodes that do not leave.
func (w *Watch) settle(now time.Time) (n news) {
	w.seen().read(func(t *Tally) {
		n.losses = t.Settle(now)
		n.failed, n.latest = t.Failed, slices.Clone(t.Losses)
	})
	return n
}

// spent reports whether losses or late answers exceed their budget.
func (w *Watch) spent(failed, late int64) bool {
	return (failed > int64(w.Budget) || w.LateBudget != nil && late > int64(*w.LateBudget)) && !w.Lenient
}

func (w *Watch) observe(samples []Sample, losses []v1alpha1.Loss) {
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

func (w *Watch) look(ctx context.Context, cancel context.CancelCauseFunc) {
	var wrote time.Time
	_ = wait.PollUntilContextCancel(ctx, lookEvery, true, func(ctx context.Context) (bool, error) {
		if w.list(ctx) != nil {
			w.nodes.pardon(w.now())
			return false, nil //nolint:nilerr // an API server that is away keeps agents from reporting, too
		}
		var silent Agent
		var quiet time.Duration
		w.seen().read(func(t *Tally) { silent, quiet = w.nodes.silent(t, w.now(), w.Patience) })
		if quiet > 0 && !w.Lenient {
			cancel(&agentset.SilentError{Missing: []agentset.Silent{w.why(ctx, silent)}, For: quiet})
		}
		n := w.settle(w.now())
		w.observe(nil, n.losses)
		w.judge(n, cancel)
		w.measure(cancel)
		if w.now().Sub(wrote) >= writeEvery {
			wrote = w.now()
			w.write(ctx)
		}
		return false, nil
	})
}

func (w *Watch) list(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := w.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	w.nodes.set(nodes.Items)
	cordoned := map[string]bool{}
	for i := range nodes.Items {
		cordoned[nodes.Items[i].Name] = cordonedByOthers(&nodes.Items[i])
	}
	w.seen().read(func(t *Tally) {
		t.Cordon(cordoned)
		for i := range nodes.Items {
			t.Excuse(nodes.Items[i].Name, agentset.Apart(&nodes.Items[i]))
		}
	})
	return nil
}

func (w *Watch) Diagnose(by Diagnosis) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.diagnosis = by
}

func (w *Watch) diagnosed() Diagnosis {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.diagnosis
}

func (w *Watch) why(ctx context.Context, a Agent) agentset.Silent {
	if by := w.diagnosed(); by != nil {
		return by.Why(ctx, a.Node, a.Origin)
	}
	return agentset.Silent{Node: a.Node, Origin: a.Origin, Reason: "the reason is not known"}
}

// write updates status.proof. The next write makes up for a failed one.
func (w *Watch) write(ctx context.Context) {
	if w.Status == nil {
		return
	}
	var proof *v1alpha1.ProofStatus
	w.seen().read(func(t *Tally) { proof = w.nodes.status(t) })
	if proof != nil {
		_ = w.Status(ctx, func(st *v1alpha1.MigrationStatus) { st.Proof = proof })
	}
}

// Expect says that from now on every ready node has to report, and that losses count.
func (w *Watch) Expect() {
	w.nodes.expect(true)
	w.seen().read((*Tally).Begin)
}

// Release says that agents may go.
func (w *Watch) Release() { w.nodes.expect(false) }

// until waits a moment for reports of what is missing, and returns what still is.
func (w *Watch) until(ctx context.Context, moment time.Duration, missing func(*Tally) []string) []string {
	return w.seen().until(ctx, moment, missing)
}

// Behind names nodes whose kube-proxy is not known to know a sentinel; see bridge.Witness.
func (w *Watch) Behind(ctx context.Context, sentinel *corev1.Service, nodes []string) []string {
	return w.until(ctx, moment, func(t *Tally) []string { return t.Behind(string(sentinel.UID), nodes) })
}
