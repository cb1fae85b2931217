// Package progress is the state of a migration on one page.
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
	Cluster   string
	History   *journal.History
	Holder    string
	Unseen    bool
	Next      string
	Now       time.Time
	// Counts are those of status. Counted is what they count, in the plural. ByMoves: see
	// migration.Words.
	Counts  v1alpha1.Counts
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
	Unit         string
	Done, Total  int
	Tiers        []v1alpha1.TierStatus
	// Rate is moves per minute; zero if unknown, or if something else is counted.
	Rate  float64
	Left  time.Duration
	Known bool
	Proof *v1alpha1.ProofStatus
	Gates []Gate
	// Waits is a wait that ends by itself.
	Waits   string
	Holder  string
	Unseen  bool
	Problem string
	Next    string
	// Over says that nothing goes on, and that the cluster is as was asked for.
	Over bool
	// Effort is nil, and Phases are none, if nothing is known of any run.
	Effort *journal.Effort
	Phases []PhaseLine
}

// Gate is what people have to do before it goes on.
type Gate struct {
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
		Unit: in.Counted, Done: in.Counts.Moved, Total: in.Counts.Total, Tiers: st.Tiers, Proof: st.Proof,
		Holder: in.Holder, Unseen: in.Unseen, Problem: st.LastError, Next: in.Next, Effort: h.Effort(),
	}
	v.Over = in.Holder == "" && (settled(m) || st.Phase.Over())
	if len(h.Runs) == 0 {
		return v
	}
	v.Phases = phases(h, in.Holder != "" || in.Unseen)
	if v.Over {
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

func settled(m *v1alpha1.Migration) bool {
	return m.Spec.Desired == v1alpha1.DesiredApplied && m.Status.Phase == v1alpha1.PhaseMoved
}

// current is the group, the gates and the other waits of the latest run.
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

// Key is the same for views that differ in progress within a tenth.
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
