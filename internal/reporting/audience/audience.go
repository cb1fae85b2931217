// Package audience has a run heard by all that are to hear of it: the notifiers of its Migration, the cluster's own Events, the journal that
// reports are made from, and metrics. It is the same for a run of the command line and for one of the operator.
package audience

import (
	"context"
	"errors"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/reporting/keptreports"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/metrics"
	"github.com/replumb/replumb/internal/reporting/notify"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// flushLimit is how long the end of a run waits for what is written about it.
const flushLimit = 10 * time.Second

// Of says whose run it is, and where it is heard.
type Of struct {
	Cluster   *cluster.Cluster
	Migration *v1alpha1.Migration
	// Common is what all kinds have, defaulted.
	Common   v1alpha1.MigrationSpec
	Identity engine.Identity
	// Command is what runs, such as "replumb apply", Version that of this build, and Overrides the flags that outweigh the Migration.
	Command, Version string
	Overrides        []string
	// Metrics count the run; nil for none.
	Metrics *metrics.Run
	// Warn is called with what goes wrong in telling others, Lost with each loss as it is seen, in words.
	Warn func(error)
	Lost func(text string)
}

// Audience hears of one run. Close must be called in the end.
type Audience struct {
	of       Of
	past     *history
	notifier *notify.Notifier
	events   *notify.Events
	stop     func(context.Context)
}

// Gather starts to listen. A notifier that the Migration wants a run to end for calls stop.
func Gather(ctx context.Context, of Of, stop context.CancelCauseFunc) *Audience {
	notifier := notify.New(of.Common.Notify, stop)
	notifier.About(of.Identity)
	events := notify.NewEvents(of.Cluster, of.Migration.Name, func(err error) {
		if !errors.Is(err, notify.ErrNoMigration) { // nothing was begun, and there is nothing to write about
			of.Warn(err)
		}
	})
	past, end := remember(ctx, of, events)
	return &Audience{of: of, past: past, notifier: notifier, events: events, stop: end}
}

// Event is a sink of events.
func (a *Audience) Event(e engine.Event) {
	a.notifier.Event(e)
	a.events.Event(e)
	a.past.Event(e)
}

// observed is a job that tells more than its events.
type observed interface {
	Observe(o servicecidr.Observer)
}

// watched is a job that agents watch, and that has no more to tell.
type watched interface {
	Observe(o lossguard.Observer)
}

// Observe has a job tell what is seen in its runs, if it has more to tell than events.
func (a *Audience) Observe(job any) {
	switch j := job.(type) {
	case observed:
		j.Observe(a.past)
	case watched:
		j.Observe(a.past)
	}
}

// Close says how the run ended, writes what is left to write, and keeps the report: for half a minute at most, also when ctx is cancelled.
func (a *Audience) Close(ctx context.Context, err error) {
	a.past.end(err)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	a.stop(last)
	a.events.Close(last)
	if failed := a.notifier.Close(last); failed != nil {
		a.of.Warn(failed)
	}
	if failed := keptreports.Keep(ctx, a.of.Cluster, a.of.Migration.Name); failed != nil && !engine.Revoked(err) {
		a.of.Warn(failed)
	}
}

// begin describes the run for its report.
func begin(ctx context.Context, of Of) journal.Run {
	return journal.Describe(ctx, of.Cluster, of.Migration.Name, of.Command, of.Version, of.Overrides...)
}
