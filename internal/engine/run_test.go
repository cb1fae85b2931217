package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fake is a step made of functions.
type fake struct {
	id     string
	state  func() (State, error)
	do     func(ctx context.Context) error
	verify func() error
	limit  time.Duration
}

func (f *fake) ID() string    { return f.id }
func (f *fake) Title() string { return "Step " + f.id }
func (f *fake) State(context.Context) (State, error) {
	if f.state == nil {
		return Pending, nil
	}
	return f.state()
}

func (f *fake) Do(ctx context.Context) error {
	if f.do == nil {
		return nil
	}
	return f.do(ctx)
}

func (f *fake) Verify(context.Context) error {
	if f.verify == nil {
		return nil
	}
	return f.verify()
}

func (f *fake) Deadline() time.Duration {
	if f.limit == 0 {
		return 5 * time.Second
	}
	return f.limit
}

type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) sink(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) kinds() []EventKind {
	var kinds []EventKind
	for _, e := range r.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func planOf(parallel int, steps ...Step) *Plan {
	return &Plan{Name: "test", Phases: []Phase{{Name: "one", Groups: []Group{{Parallel: parallel, Steps: steps}}}}}
}

func TestRunObservesDoesVerifies(t *testing.T) {
	var calls []string
	s := &fake{
		id:     "a",
		state:  func() (State, error) { calls = append(calls, "state"); return Pending, nil },
		do:     func(context.Context) error { calls = append(calls, "do"); return nil },
		verify: func() error { calls = append(calls, "verify"); return nil },
	}
	rec := &recorder{}
	if err := (&Runner{Sink: rec.sink}).Run(t.Context(), planOf(1, s)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"state", "do", "verify"}; !slices.Equal(calls, want) {
		t.Errorf("calls = %v, want %v", calls, want)
	}
	want := []EventKind{RunStarted, PhaseStarted, StepStarted, StepDone, PhaseDone, RunDone}
	if !slices.Equal(rec.kinds(), want) {
		t.Errorf("events = %v, want %v", rec.kinds(), want)
	}
}

func TestRunLeavesDoneStepsAlone(t *testing.T) {
	s := &fake{
		id:    "a",
		state: func() (State, error) { return Done, nil },
		do:    func(context.Context) error { return errors.New("must not be called") },
	}
	rec := &recorder{}
	if err := (&Runner{Sink: rec.sink}).Run(t.Context(), planOf(1, s)); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(rec.kinds(), StepUnchanged) {
		t.Errorf("events = %v", rec.kinds())
	}
}

// retreating is a step with a way back.
type retreating struct {
	fake
	back []Step
	then error
}

func (r *retreating) Retreat(error) ([]Step, error) { return r.back, r.then }

// TestRunRetreats: the way back is run after a failure and before anything else, and not after an
// interruption, which is no failure.
func TestRunRetreats(t *testing.T) {
	failed, then := errors.New("failed"), errors.New("went back")
	for _, tt := range []struct {
		name      string
		err, back error
		says      string
		went      bool
	}{
		{name: "the way back is done", err: failed, says: "step a: went back", went: true},
		{name: "the way back fails", err: failed, back: errors.New("no way"), says: "step a: failed; on the way back: step back: no way", went: true},
		{name: "interrupted", err: ErrInterrupted, says: "interrupted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			went, further := false, false
			back := &fake{id: "back", do: func(context.Context) error { went = true; return tt.back }}
			a := &retreating{fake: fake{id: "a", do: func(context.Context) error { return tt.err }}, back: []Step{back}, then: then}
			next := &fake{id: "next", do: func(context.Context) error { further = true; return nil }}
			rec := &recorder{}
			err := (&Runner{Sink: rec.sink}).Run(t.Context(), planOf(1, a, next))
			if err == nil || err.Error() != tt.says || went != tt.went || further {
				t.Errorf("%v, went back: %t, began another: %t", err, went, further)
			}
		})
	}
}

func TestRunRetriesOnlyWhatCanPass(t *testing.T) {
	gr := schema.GroupResource{Resource: "services"}
	for _, tt := range []struct {
		name string
		err  error
		do   int
	}{
		{"conflict looks again", apierrors.NewConflict(gr, "a", errors.New("x")), 2},
		{"busy", apierrors.NewTooManyRequests("x", 1), 2},
		{"server error", apierrors.NewInternalError(errors.New("x")), 2},
		{"not yet", NotYet("later"), 2},
		{"forbidden", apierrors.NewForbidden(gr, "a", errors.New("x")), 1},
		{"any other", errors.New("x"), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			did := 0
			s := &fake{id: "a", do: func(context.Context) error {
				if did++; did == 1 {
					return tt.err
				}
				return nil
			}}
			err := new(Runner).Run(t.Context(), planOf(1, s))
			if did != tt.do || (err != nil) != (tt.do == 1) {
				t.Errorf("did %d times, error %v", did, err)
			}
		})
	}
}

func TestRunAsksForProofWithoutDoingAgain(t *testing.T) {
	did, asked := 0, 0
	s := &fake{
		id: "a",
		do: func(context.Context) error { did++; return nil },
		verify: func() error {
			if asked++; asked < 3 {
				return NotYet("attempt %d", asked)
			}
			return nil
		},
	}
	if err := new(Runner).Run(t.Context(), planOf(1, s)); err != nil || did != 1 || asked != 3 {
		t.Errorf("err %v, did %d, asked %d", err, did, asked)
	}
}

// TestRunBeginsAnew: what was done does not stand.
func TestRunBeginsAnew(t *testing.T) {
	did, asked := 0, 0
	s := &fake{
		id: "a",
		do: func(context.Context) error { did++; return nil },
		verify: func() error {
			if asked++; asked == 2 {
				return Anew("somebody took it back")
			}
			if asked < 4 {
				return NotYet("later")
			}
			return nil
		},
	}
	if err := new(Runner).Run(t.Context(), planOf(1, s)); err != nil || did != 2 || asked != 4 {
		t.Errorf("err %v, did %d, asked %d", err, did, asked)
	}
}

func TestRunGivesUpAtTheDeadlineAndSaysWhatWasMissing(t *testing.T) {
	s := &fake{id: "a", limit: 100 * time.Millisecond, verify: func() error { return NotYet("node b has not answered") }}
	err := new(Runner).Run(t.Context(), planOf(1, s))
	var late *DeadlineError
	if !errors.As(err, &late) || late.Err.Error() != "node b has not answered" {
		t.Errorf("got %v", err)
	}
}

func TestRunStopsAtTheFirstFailure(t *testing.T) {
	later := &fake{id: "b", do: func(context.Context) error { t.Error("b was begun"); return nil }}
	s := &fake{id: "a", do: func(context.Context) error { return errors.New("broken") }}
	err := new(Runner).Run(t.Context(), planOf(1, s, later))
	var step *StepError
	if !errors.As(err, &step) || step.Step != "a" {
		t.Errorf("got %v", err)
	}
}

func TestRunFinishesTheStepInHandWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	finished := false
	s := &fake{id: "a", do: func(inner context.Context) error {
		cancel()
		finished = inner.Err() == nil
		return inner.Err()
	}}
	next := &fake{id: "b", do: func(context.Context) error { t.Error("b was begun"); return nil }}
	rec := &recorder{}
	err := (&Runner{Sink: rec.sink}).Run(ctx, planOf(1, s, next))
	if !errors.Is(err, ErrInterrupted) || !finished {
		t.Errorf("err %v, finished %v", err, finished)
	}
	if kinds := rec.kinds(); kinds[len(kinds)-1] != RunInterrupted || !slices.Contains(kinds, StepDone) {
		t.Errorf("events = %v", kinds)
	}
}

type pause struct{ fake }

func (*pause) Waits() {}

func TestRunEndsWaitsAtOnceWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &pause{fake{id: "a", limit: time.Hour, verify: func() error { cancel(); return NotYet("still waiting") }}}
	if err := new(Runner).Run(ctx, planOf(1, s)); !errors.Is(err, ErrInterrupted) {
		t.Errorf("got %v", err)
	}
}

type littering struct {
	pause
	abandoned, cancelled bool
}

func (l *littering) Abandon(ctx context.Context) error {
	l.abandoned, l.cancelled = true, ctx.Err() != nil
	return nil
}

func TestRunLetsAStepCleanUpWhenItDidNotEndWell(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for _, tt := range []struct {
		name   string
		verify func() error
		want   bool
	}{
		{"well", func() error { return nil }, false},
		{"failed", func() error { return errors.New("broken") }, true},
		{"interrupted", func() error { cancel(); return NotYet("still waiting") }, true},
	} {
		s := &littering{pause: pause{fake{id: "a", verify: tt.verify}}}
		err := new(Runner).Run(ctx, planOf(1, s))
		if s.abandoned != tt.want || s.cancelled || (err != nil) != tt.want {
			t.Errorf("%s: abandoned %v with a cancelled context %v; error %v", tt.name, s.abandoned, s.cancelled, err)
		}
	}
}

type noting struct {
	fake
	note string
}

func (n *noting) Note() string { return n.note }

func TestRunTellsWhatADoneStepHasToTell(t *testing.T) {
	done := func() (State, error) { return Done, nil }
	rec := &recorder{}
	if err := (&Runner{Sink: rec.sink}).Run(t.Context(), planOf(
		1,
		&noting{
			fake{id: "a"},
			"called in vain",
		},
		&noting{fake{id: "b"}, ""},
		&fake{id: "c"},
		&noting{fake{id: "d", state: done}, "old news"},
	)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range rec.events {
		if e.Kind == StepDone || e.Kind == StepUnchanged {
			got[e.Step] = e.Note
		}
	}
	if want := map[string]string{"a": "called in vain", "b": "", "c": "", "d": ""}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRunKeepsToTheParallelLimit(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	var steps []Step
	barrier := make(chan struct{}, 3)
	for i := range 12 {
		steps = append(steps, &fake{id: fmt.Sprint(i), do: func(context.Context) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			barrier <- struct{}{}
			mu.Lock()
			running--
			mu.Unlock()
			<-barrier
			return nil
		}})
	}
	if err := new(Runner).Run(t.Context(), planOf(3, steps...)); err != nil || most > 3 {
		t.Errorf("err %v, at most %d at once", err, most)
	}
}

func TestPlanRejectsEqualIDs(t *testing.T) {
	if err := new(Runner).Run(t.Context(), planOf(1, &fake{id: "a"}, &fake{id: "a"})); err == nil {
		t.Error("accepted two steps with one id")
	}
}

func TestHold(t *testing.T) {
	plan := &Plan{
		Name:   "p",
		Phases: []Phase{{Name: "one", Groups: []Group{{Steps: []Step{&fake{id: "a"}}}, {Steps: []Step{&fake{id: "b"}}}}}},
	}
	asked := 0
	r := &recorder{}
	runner := &Runner{Sink: r.sink, Hold: func(context.Context) error {
		asked++
		switch asked {
		case 1:
			return apierrors.NewServiceUnavailable("restarting") // asked again
		case 3:
			return ErrPaused // before the second group
		}
		return nil
	}}
	if err := runner.Run(t.Context(), plan); !errors.Is(err, ErrPaused) {
		t.Errorf("got %v", err)
	}
	var done []string
	for _, e := range r.events {
		if e.Kind == StepDone {
			done = append(done, e.Step)
		}
	}
	if !slices.Equal(done, []string{"hold", "a"}) || asked != 3 || r.events[len(r.events)-1].Kind != RunInterrupted {
		t.Errorf("done %v, asked %d times, last event %v", done, asked, r.events[len(r.events)-1])
	}
}

func TestUntil(t *testing.T) {
	plan := &Plan{Name: "p", Phases: []Phase{{Name: "one"}, {Name: "two"}, {Name: "three"}}}
	short, err := plan.Until("two")
	if err != nil || len(short.Phases) != 2 || len(plan.Phases) != 3 {
		t.Errorf("got %v, %v", short, err)
	}
	var unknown *UnknownPhaseError
	if _, err := plan.Until("four"); !errors.As(err, &unknown) || len(unknown.Phases) != 3 {
		t.Errorf("got %v", err)
	}
}

// guide is a step that tells people what to do, and is done when they have been told.
type guide struct {
	fake
}

func (*guide) Guide() string { return "turn the key" }

func TestGuideIsToldOnce(t *testing.T) {
	looks := 0
	step := &guide{fake{id: "gate", verify: func() error {
		looks++
		if looks < 4 {
			return NotYet("look %d", looks)
		}
		return nil
	}}}
	r := &recorder{}
	if err := (&Runner{Sink: r.sink}).Run(t.Context(), &Plan{Phases: []Phase{{Groups: []Group{{Steps: []Step{step}}}}}}); err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, e := range r.events {
		if e.Guide != "" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// revoked is a Revocation.
type revoked struct{}

func (revoked) Error() string { return "another is at work" }
func (revoked) Revokes()      {}

// cleaner is a step that cleans up after itself.
type cleaner struct {
	*fake
	cleaned bool
}

func (c *cleaner) Abandon(context.Context) error { c.cleaned = true; return nil }

// TestRevokedRunIsCutOff: a step in hand ends at once, is not tried again, and does not clean up
// what may be another's by now. The control is a run that is cancelled for any other reason, whose
// step is brought to its end.
func TestRevokedRunIsCutOff(t *testing.T) {
	for _, cause := range []error{revoked{}, context.Canceled} {
		ctx, cancel := context.WithCancelCause(t.Context())
		tried, cut := 0, make(chan struct{})
		s := &cleaner{fake: &fake{id: "a"}}
		s.do = func(ctx context.Context) error {
			if tried++; tried > 1 {
				return nil
			}
			cancel(cause)
			if !Revoked(cause) {
				return NotYet("once more")
			}
			<-ctx.Done()
			close(cut)
			return ctx.Err()
		}
		err := new(Runner).Run(ctx, planOf(1, s))
		if !errors.Is(err, ErrInterrupted) {
			t.Errorf("%v: got %v", cause, err)
		}
		if Revoked(cause) {
			<-cut
			if tried != 1 || s.cleaned || !Revoked(err) {
				t.Errorf("tried %d times, cleaned up %t, error %v", tried, s.cleaned, err)
			}
		} else if tried != 2 {
			t.Errorf("control: tried %d times", tried)
		}
	}
}

// fence is one that holds, or does not.
type fence struct{ err error }

func (f fence) MayWrite(context.Context, bool) error { return f.err }

// TestFenceEndsAStep: a write that the fence holds back is not tried again, also if the reason
// looks like one that passes.
func TestFenceEndsAStep(t *testing.T) {
	tried := 0
	s := &fake{id: "a", do: func(ctx context.Context) error {
		tried++
		return MayWrite(ctx, false)
	}}
	err := new(Runner).Run(Fenced(t.Context(), fence{fmt.Errorf("%w: %w", revoked{}, NotYet("later"))}), planOf(1, s))
	if tried != 1 || !errors.Is(err, ErrInterrupted) || !Revoked(err) {
		t.Errorf("tried %d times, error %v", tried, err)
	}
	if err := MayWrite(Fenced(t.Context(), nil), true); err != nil {
		t.Errorf("without a fence: %v", err)
	}
}
