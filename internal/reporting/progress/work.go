package progress

import (
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/forecast"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// patience bounds how much of a wait in a batch belongs to its pace: a longer one is a window, or
// says nothing of the next batch.
const patience = 30 * time.Second

func work(in Input, h *journal.History) forecast.Work {
	m, w := in.Migration, forecast.Work{}
	if m.Spec.Batch.Settle != nil {
		w.Settle = m.Spec.Batch.Settle.Duration
	}
	if len(h.Runs) == 0 {
		return w
	}
	run := h.Runs[len(h.Runs)-1]
	t := tally{settle: w.Settle, byMoves: in.ByMoves}
	for _, e := range h.Events {
		i := slices.IndexFunc(h.Runs, func(r journal.Run) bool { return r.ID == e.Run })
		if e.Run != run.ID && (i < 0 || !t.byMoves || h.Runs[i].Command != run.Command) {
			continue // it went another way, or counts steps of another plan
		}
		t.event(e)
	}
	w.Bursts, w.Begun = t.bursts, t.last
	switch {
	case t.byMoves:
		w.Batch, w.Tiers = m.Spec.Batch.Size, tiers(in)
	case t.moving:
		w.Tiers = []forecast.Tier{{Total: t.total, Done: t.done}}
	}
	w.Waiting = waiting(m, h, in.Now)
	return w
}

func tiers(in Input) (all []forecast.Tier) {
	m := in.Migration
	for _, t := range m.Status.Tiers {
		all = append(all, forecast.Tier{Total: t.Total, Done: t.Moved, Pause: pauseAfter(m, t.Name)})
	}
	if len(all) == 0 {
		all = append(all, forecast.Tier{Total: in.Counts.Total, Done: in.Counts.Moved})
	}
	return all
}

func pauseAfter(m *v1alpha1.Migration, tier string) time.Duration {
	for _, t := range m.Spec.Tiers {
		if t.Name == tier && t.Pause != nil {
			return t.Pause.Duration
		}
	}
	return 0
}

// waiting is the rest of the pause after a tier; its group has the tier's name.
func waiting(m *v1alpha1.Migration, h *journal.History, now time.Time) time.Duration {
	if len(h.Events) == 0 {
		return 0
	}
	last := h.Events[len(h.Events)-1]
	if last.Kind != engine.StepWaiting || last.Role != engine.RoleWait {
		return 0
	}
	return max(0, pauseAfter(m, last.Group)-now.Sub(last.Time))
}

// tally makes batches of events: what is done in one group, from where the one before it ended.
type tally struct {
	settle  time.Duration
	byMoves bool

	bursts []forecast.Burst
	last   time.Time

	group string
	open  forecast.Burst
	// done and total are the steps of the phase; moving is true if one of them moved something.
	done, total int
	moving      bool
}

func (t *tally) event(e journal.Event) {
	switch e.Kind {
	case engine.PhaseStarted:
		t.close()
		t.last, t.total, t.done, t.moving = e.Time, e.Total, 0, false
	case engine.PhaseDone, engine.RunDone, engine.RunFailed, engine.RunInterrupted:
		t.close()
	case engine.StepDone:
		if e.Group != t.group {
			t.close()
			t.group = e.Group
			t.open = forecast.Burst{Start: t.last}
		}
		t.done, t.moving = max(t.done, e.Done), t.moving || e.Role == engine.RoleMove
		t.open.End = e.Time
		if !t.byMoves || e.Role == engine.RoleMove {
			t.open.Items++
		}
		t.open.Idle += t.idle(e)
	}
}

// idle is how much of a step says nothing of the pace.
func (t *tally) idle(e journal.Event) time.Duration {
	took := time.Duration(e.Seconds * float64(time.Second))
	switch {
	case e.Role == engine.RoleGate:
		return took
	case e.Role == engine.RoleWait && took > t.settle+patience:
		return took - t.settle
	}
	return 0
}

func (t *tally) close() {
	if t.group == "" && t.open.End.IsZero() {
		return
	}
	if t.open.Items > 0 {
		t.bursts = append(t.bursts, t.open)
	}
	t.last, t.group, t.open = t.open.End, "", forecast.Burst{}
}

// rate is moves per minute of the latest batches; zero if unknown.
func rate(bursts []forecast.Burst) float64 {
	const latest = 10
	items, took := 0, time.Duration(0)
	for _, b := range bursts[max(0, len(bursts)-latest):] {
		items += b.Items
		took += b.End.Sub(b.Start) - b.Idle
	}
	if took <= 0 {
		return 0
	}
	return float64(items) / took.Minutes()
}
