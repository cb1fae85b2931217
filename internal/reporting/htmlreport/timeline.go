package htmlreport

import (
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// runs with how they ended.
func runs(h *journal.History) []Run {
	var out []Run
	for _, r := range h.Runs {
		run, began := Run{Run: r, End: h.End(r), Outcome: Open}, false
		for _, e := range h.Events {
			if e.Run != r.ID {
				continue
			}
			switch e.Kind {
			case engine.RunStarted:
				run.Outcome, run.Error, began = Open, "", true
			case engine.RunDone:
				run.Outcome = Done
			case engine.RunFailed:
				run.Outcome, run.Error = Failed, e.Error
				if !began {
					run.Outcome = Refused
				}
			case engine.RunInterrupted:
				run.Outcome, run.Error = Interrupted, e.Error
			}
		}
		run.Seconds = run.End.Sub(run.Start).Seconds()
		out = append(out, run)
	}
	return out
}

// timeline is runs, phases, tiers and groups, each level in the order of time. Phases in which
// nothing was done are left out.
func timeline(h *journal.History, all []Run, tiers []v1alpha1.TierStatus) []Span {
	var out []Span
	for _, r := range all {
		out = append(out, Span{Level: LevelRun, Name: r.Command, Run: r.ID, Start: r.Start, End: r.End, Outcome: r.Outcome})
	}
	w := &walker{open: map[string]*Span{}}
	for _, e := range h.Events {
		w.event(e)
	}
	for _, r := range all {
		w.close(r.ID, r.End, r.Outcome)
	}
	for _, level := range []Level{LevelPhase, LevelBatch} {
		spans := slices.DeleteFunc(slices.Clone(w.spans), func(s Span) bool { return s.Level != level || s.Steps == 0 })
		slices.SortStableFunc(spans, func(a, b Span) int { return a.Start.Compare(b.Start) })
		if level == LevelBatch {
			out = append(out, tierSpans(h.Moves, tiers)...)
		}
		out = append(out, spans...)
	}
	return out
}

// walker follows events. Of each run one phase and one group is open at a time.
type walker struct {
	open  map[string]*Span
	spans []Span
}

func (w *walker) event(e journal.Event) {
	phase, group := e.Run+"/phase", e.Run+"/group"
	switch e.Kind {
	case engine.PhaseStarted:
		w.end(group, e.Time, Done)
		w.end(phase, e.Time, Done)
		w.open[phase] = &Span{Level: LevelPhase, Name: e.Phase, Title: e.Message, Run: e.Run, Start: e.Time}
	case engine.PhaseDone:
		w.end(group, time.Time{}, Done)
		w.end(phase, e.Time, Done)
	case engine.StepDone, engine.StepFailed, engine.StepWaiting, engine.StepRetried:
		if p := w.open[phase]; p != nil {
			p.Steps++
		}
		w.step(group, e)
	}
}

// step widens the group that a step is of, or begins it.
func (w *walker) step(key string, e journal.Event) {
	start := e.Time.Add(-time.Duration(e.Seconds * float64(time.Second)))
	if g := w.open[key]; g != nil && g.Name != e.Group {
		w.end(key, time.Time{}, Done)
	}
	if e.Group == "" {
		return
	}
	g := w.open[key]
	if g == nil {
		g = &Span{Level: LevelBatch, Name: e.Group, Title: e.Phase, Run: e.Run, Start: start, End: e.Time}
		w.open[key] = g
	}
	g.Steps++
	if start.Before(g.Start) {
		g.Start = start
	}
	if e.Time.After(g.End) {
		g.End = e.Time
	}
}

// end closes what is open, at a time or, without one, where it was last heard of.
func (w *walker) end(key string, at time.Time, o Outcome) {
	s := w.open[key]
	if s == nil {
		return
	}
	delete(w.open, key)
	s.Outcome = o
	if !at.IsZero() && s.Level == LevelPhase {
		s.End = at
	}
	w.spans = append(w.spans, *s)
}

// close ends a run.
func (w *walker) close(run string, at time.Time, o Outcome) {
	w.end(run+"/group", time.Time{}, o)
	w.end(run+"/phase", at, o)
}

// tierSpans are the tiers, which move one after another: as many Services as each has. Where that
// does not add up, since Services moved more than once for instance, it is not known.
func tierSpans(moves []journal.Move, tiers []v1alpha1.TierStatus) []Span {
	total := 0
	for _, t := range tiers {
		total += t.Total
	}
	if total == 0 || total != len(moves) || len(tiers) < 2 {
		return nil
	}
	var out []Span
	for _, t := range tiers {
		of := moves[:t.Total]
		moves = moves[t.Total:]
		if len(of) == 0 {
			continue
		}
		s := Span{Level: LevelTier, Name: t.Name, Start: began(of[0]), End: of[len(of)-1].At, Outcome: Done, Steps: len(of)}
		for _, m := range of {
			if start := began(m); start.Before(s.Start) {
				s.Start = start
			}
		}
		out = append(out, s)
	}
	return out
}

func began(m journal.Move) time.Time {
	return m.At.Add(-time.Duration(m.Seconds * float64(time.Second)))
}

// gates are the steps that had instructions for people, with when they were seen to be done.
func gates(h *journal.History, all []Run) []Gate {
	var out []Gate
	waiting := map[string]int{}
	for _, e := range h.Events {
		key := e.Run + " " + e.Step
		i, known := waiting[key]
		switch {
		case e.Guide != "":
			waiting[key] = len(out)
			out = append(out, Gate{Step: e.Step, Title: e.Message, Guide: e.Guide, Since: e.Time, By: by(all, e.Run)})
		case known && e.Kind == engine.StepDone:
			at := e.Time
			out[i].Passed, out[i].Seconds = &at, at.Sub(out[i].Since).Seconds()
		}
	}
	return out
}

func by(all []Run, id string) string {
	i := slices.IndexFunc(all, func(r Run) bool { return r.ID == id })
	if i < 0 {
		return ""
	}
	return all[i].By()
}
