// Package progress is where a migration stands at a moment, on one page: what it does, how far it
// is and how long the rest takes, what was lost, whom it waits for and who runs it.
package progress

import (
	"slices"
	"strconv"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// Input is what a View is made of.
type Input struct {
	Migration *v1alpha1.Migration
	// Cluster that it is in, in words.
	Cluster string
	History *journal.History
	// Holder is who works on it, in words; empty for no one. Unseen says that it is not known.
	Holder string
	Unseen bool
	// Next is the command that leads on.
	Next string
	Now  time.Time
	// Counted is what its status counts, in the plural; ByMoves says that one step moves one of it,
	// tier by tier. Otherwise progress goes by the steps of a phase.
	Counted string
	ByMoves bool
}

// View is a moment of a migration.
type View struct {
	Migration, Cluster string
	At                 time.Time
	Phase              v1alpha1.Phase
	// Stage is the phase of the plan, Group what goes on in it, such as batch 37 of 500.
	Stage, Group string
	Paused       bool
	// Unit is what is counted, in the plural.
	Unit        string
	Done, Total int
	Tiers       []v1alpha1.TierStatus
	// Rate is how many a minute move; zero if that is not known, or what is counted is not what
	// moves.
	Rate float64
	// Left is how long the rest of the move takes, if Known.
	Left  time.Duration
	Known bool
	Proof *v1alpha1.ProofStatus
	Gates []Gate
	// Waits is what it waits for by itself.
	Waits  string
	Holder string
	// Unseen says that it is not known who works on it.
	Unseen bool
	// Problem is why the last run stopped.
	Problem string
	Next    string
	// Over says that nothing goes on, and that the cluster is as was asked for.
	Over bool
}

// Gate is what people have to do before it goes on.
type Gate struct {
	// ID of its step.
	ID, Title, Guide string
	Since            time.Time
}

// Look makes a View. It reads nothing.
func Look(in Input) View {
	m, h := in.Migration, in.History
	if h == nil {
		h = &journal.History{}
	}
	st := m.Status
	v := View{
		Migration: m.Name, Cluster: in.Cluster, At: in.Now, Phase: st.Phase, Stage: st.Stage, Paused: m.Spec.Paused,
		Unit: in.Counted, Done: st.Counts.Moved, Total: st.Counts.Total, Tiers: st.Tiers, Proof: st.Proof,
		Holder: in.Holder, Unseen: in.Unseen, Problem: st.LastError, Next: in.Next,
	}
	v.Over = in.Holder == "" && (settled(m) || st.Phase == v1alpha1.PhaseFinished || st.Phase == v1alpha1.PhaseRolledBack)
	if v.Over || len(h.Runs) == 0 {
		return v
	}
	v.current(h)
	w := work(in, h)
	if in.Holder == "" && !in.Unseen || st.Phase != v1alpha1.PhaseApplying {
		return v
	}
	if in.ByMoves {
		v.Rate = rate(w.Bursts)
	}
	v.Left, v.Known = w.Left(in.Now)
	v.Known = v.Known && v.Left > 0
	return v
}

// settled reports whether what was asked for last is reached.
func settled(m *v1alpha1.Migration) bool {
	return m.Spec.Desired == v1alpha1.DesiredApplied && m.Status.Phase == v1alpha1.PhaseMoved
}

// current is what the latest run does: the group that it is in, the gates that it waits at, and
// what else it waits for.
func (v *View) current(h *journal.History) {
	run := h.Runs[len(h.Runs)-1].ID
	waits := map[string]journal.Event{}
	var order []string
	for _, e := range h.Events {
		if e.Run != run {
			continue
		}
		switch e.Kind {
		case engine.PhaseStarted:
			v.Group = ""
			if v.Stage == "" {
				v.Stage = e.Phase
			}
		case engine.StepWaiting, engine.StepRetried:
			v.Group = e.Group
			if have, ok := waits[e.Step]; ok && e.Guide == "" {
				e.Guide, e.Time = have.Guide, have.Time
			} else if !ok {
				order = append(order, e.Step)
			}
			waits[e.Step] = e
		case engine.StepDone, engine.StepFailed:
			v.Group = e.Group
			delete(waits, e.Step)
			order = slices.DeleteFunc(order, func(step string) bool { return step == e.Step })
		case engine.RunDone, engine.RunFailed, engine.RunInterrupted:
			v.Group = ""
			clear(waits)
			order = nil
		}
	}
	for _, step := range order {
		e := waits[step]
		if e.Guide != "" {
			v.Gates = append(v.Gates, Gate{ID: e.Step, Title: e.Message, Guide: e.Guide, Since: e.Time})
		} else {
			v.Waits = e.Message + ": " + e.Error
		}
	}
}

// Key is the same for views between which nothing happened that people want to hear of at once.
// Progress counts by tenths.
func (v View) Key() string {
	key := v.Migration + "\x00" + string(v.Phase) + "\x00" + v.Stage + "\x00" + v.Problem + "\x00" + v.Holder
	if v.Paused {
		key += "\x00paused"
	}
	if v.Total > 0 {
		key += "\x00" + strconv.Itoa(10*v.Done/v.Total)
	}
	if v.Proof != nil && v.Proof.Failed > 0 {
		key += "\x00lost"
	}
	for _, g := range v.Gates {
		key += "\x00" + g.ID
	}
	return key
}
