package runsinks

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/metrics"
	"github.com/replumb/replumb/internal/reporting/notify"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const flushEvery = 10 * time.Second

// history keeps what happens in a run, and tells people of losses as they are seen.
type history struct {
	journal  *journal.Writer
	measured *metrics.RunMetrics
	events   *notify.Events
	lost     func(text string)

	mu       sync.Mutex
	reported map[string]bool
	began    bool
}

// end notes how a run ended that was refused before its first event, by the lock for instance.
func (h *history) end(err error) {
	h.mu.Lock()
	began := h.began
	h.mu.Unlock()
	if err != nil && !began {
		h.journal.Event(engine.Event{Time: time.Now().UTC(), Kind: engine.RunFailed, Error: err.Error()})
	}
}

var _ lossguard.Observer = (*history)(nil)

func remember(ctx context.Context, of Of, events *notify.Events) (h *history, stop func(context.Context)) {
	h = &history{
		journal: journal.NewWriter(of.Cluster, of.Migration, time.Now), measured: of.Metrics, events: events, lost: of.Lost,
		reported: map[string]bool{},
	}
	of.Metrics.Probes(of.Common.Proof.Probes)
	h.journal.Begin(begin(ctx, of))
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var flushing sync.WaitGroup
	flushing.Go(func() {
		tick := time.NewTicker(flushEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = h.journal.Flush(ctx) // the last one tells
			case <-ctx.Done():
				return
			}
		}
	})
	return h, func(last context.Context) {
		cancel()
		flushing.Wait()
		// A run without a definition of Migration, or the right to write a journal, has none: a
		// report says so.
		if err := h.journal.Flush(last); err != nil && !apierrors.IsForbidden(err) {
			of.Warn(err)
		}
	}
}

// Event is a sink.
func (h *history) Event(e engine.Event) {
	h.mu.Lock()
	h.began = true
	h.mu.Unlock()
	h.journal.Event(e)
	h.measured.Event(e)
}

func (h *history) Loss(l v1alpha1.Loss) {
	h.journal.Loss(l)
	h.mu.Lock()
	defer h.mu.Unlock()
	key := l.Node + " " + l.Probe + " " + l.Start.UTC().String()
	if h.reported[key] {
		return
	}
	h.reported[key] = true
	text := lossguard.Describe(&l)
	h.events.Lost(text)
	h.lost(text)
}

func (h *history) Sample(s lossguard.Sample) {
	sample := journal.Sample{
		Probe:       s.Probe,
		Start:       s.Start,
		End:         s.End,
		Sent:        int64(s.Sent),
		Failed:      int64(s.Failed),
		Late:        int64(s.Late),
		NotMeasured: int64(s.NotMeasured),
		P50:         s.P50.Microseconds(),
		P99:         s.P99.Microseconds(),
		Max:         s.Max.Microseconds(),
	}
	h.journal.Sample(sample)
	h.measured.Sample(sample)
}

func (h *history) Clients(node string, clients []v1alpha1.OldAddressClient) {
	h.journal.Clients(node, clients)
}

func (h *history) Findings(all findings.Findings) { h.journal.Findings(all) }

func (h *history) moved(m migration.Move) {
	h.journal.Moved(m.Object, m.From, m.To, m.Strategy, m.At, m.Took)
}
