// Package runsinks leads the events of a run to notifiers, Events, the journal and metrics, for the
// command line and the operator.
package runsinks

import (
	"context"
	"errors"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/keptreports"
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
	// Report is what its report says of it.
	Report   migration.Report
	Common   v1alpha1.MigrationSpec
	Identity engine.Identity
	// Command is the run, such as "replumb apply", Overrides the flags that outweigh the Migration.
	Command, Version string
	Overrides        []string
	Metrics          *metrics.RunMetrics
	// Warn is called with failures to tell others, Lost with each loss, in words.
	Warn func(error)
	Lost func(text string)
}

// Sinks hear of one run. Close must be called in the end.
type Sinks struct {
	of       Of
	past     *history
	notifier *notify.Notifier
	events   *notify.Events
	stop     func(context.Context)
}

// Gather starts to listen. A notifier that the Migration wants a run to end for calls stop.
func Gather(ctx context.Context, of Of, stop context.CancelCauseFunc) *Sinks {
	notifier := notify.New(of.Common.Notify, stop)
	notifier.About(of.Identity)
	events := notify.NewEvents(of.Cluster, of.Migration.Name, func(err error) {
		if !errors.Is(err, notify.ErrNoMigration) { // nothing was begun, and there is nothing to write about
			of.Warn(err)
		}
	})
	past, end := remember(ctx, of, events)
	return &Sinks{of: of, past: past, notifier: notifier, events: events, stop: end}
}

// Event is a sink of events.
func (s *Sinks) Event(e engine.Event) {
	s.notifier.Event(e)
	s.events.Event(e)
	s.past.Event(e)
}

// Job tells more than the events of its runs.
type Job interface {
	Observe(o lossguard.Observer)
	OnMove(tell func(migration.Move))
}

// Observe has a job tell what is seen in its runs.
func (s *Sinks) Observe(j Job) {
	j.Observe(s.past)
	j.OnMove(s.past.moved)
}

// Close says how the run ended, and keeps the report: for half a minute at most, also when ctx is
// cancelled.
func (s *Sinks) Close(ctx context.Context, err error) {
	s.past.end(err)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	s.stop(last)
	s.events.Close(last)
	if failed := s.notifier.Close(last); failed != nil {
		s.of.Warn(failed)
	}
	if failed := keptreports.Keep(ctx, s.of.Cluster, s.of.Migration.Name, s.of.Report); failed != nil && !engine.Revoked(err) {
		s.of.Warn(failed)
	}
}

func begin(ctx context.Context, of Of) journal.Run {
	return journal.Describe(ctx, of.Cluster, of.Migration.Name, of.Command, of.Version, of.Overrides...)
}
