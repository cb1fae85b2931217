package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Runner runs plans.
type Runner struct {
	// Sink receives every event, one at a time.
	Sink     func(Event)
	Deadline time.Duration
	Now      func() time.Time
	// Hold, if set, is asked before each group of steps. An error ends the run there.
	Hold func(ctx context.Context) error
	// HoldLimit is for how long it may say NotYet, if that is longer than Deadline.
	HoldLimit time.Duration
}

type run struct {
	*Runner
	plan  *Plan
	mu    sync.Mutex
	phase string
	group string
	done  int
	total int
}

// Run does what is not done yet, phase by phase. On cancellation it finishes steps in hand and
// returns ErrInterrupted, or ErrPaused if that is the cause; a Revocation cuts them off.
func (r *Runner) Run(ctx context.Context, plan *Plan) error {
	if err := plan.Validate(); err != nil {
		return err
	}
	this := &run{Runner: r, plan: plan}
	start := this.now()
	this.emit(Event{Kind: RunStarted, Ahead: plan.ahead()})
	err := this.phases(ctx)
	took := this.now().Sub(start).Seconds()
	this.phase, this.group, this.done, this.total = "", "", 0, 0
	switch {
	case err == nil:
		this.emit(Event{Kind: RunDone, Seconds: took})
	case ended(err):
		this.emit(Event{Kind: RunInterrupted, Error: err.Error(), Seconds: took})
	default:
		this.emit(Event{Kind: RunFailed, Error: err.Error(), Seconds: took})
	}
	return err
}

func (r *run) phases(ctx context.Context) error {
	for _, phase := range r.plan.Phases {
		start := r.now()
		r.phase, r.group, r.done, r.total = phase.Name, "", 0, 0
		for _, g := range phase.Groups {
			r.total += len(g.Steps)
		}
		r.emit(Event{Kind: PhaseStarted, Message: phase.Title})
		for _, g := range phase.Groups {
			r.group = g.Title
			if err := r.hold(ctx); err != nil {
				return err
			}
			if err := r.runGroup(ctx, g); err != nil {
				return err
			}
		}
		r.group = ""
		r.emit(Event{Kind: PhaseDone, Message: phase.Title, Seconds: r.now().Sub(start).Seconds()})
	}
	return nil
}

func (r *run) hold(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return interrupted(ctx)
	case r.Hold == nil:
		return nil
	}
	start, waited := r.now(), false
	s := &Wait{Name: "hold", About: "Ask whether the run may go on", Limit: max(r.deadline(nil), r.HoldLimit), Again: true}
	s.For = func(ctx context.Context) error {
		err := r.Hold(ctx)
		waited = waited || err != nil
		return err
	}
	_, err := r.drive(ctx, s)
	if err == nil && waited { // what shows that it waits learns that it is over
		r.emit(Event{Kind: StepDone, Step: s.ID(), Role: RoleOf(s), Message: s.Title(), Seconds: r.now().Sub(start).Seconds()})
	}
	return err
}

// runGroup starts no further step after the first failure, and finishes those in hand.
func (r *run) runGroup(ctx context.Context, g Group) error {
	eg, starting := errgroup.WithContext(ctx)
	eg.SetLimit(max(1, g.Parallel))
	for _, s := range g.Steps {
		eg.Go(func() error {
			if starting.Err() == nil {
				return r.step(ctx, s)
			}
			return nil // not begun; what stopped the group is reported by the step that failed, or below
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	return nil
}

func interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrPaused):
		return ErrPaused
	case !errors.Is(cause, context.Canceled):
		return fmt.Errorf("%w: %w", ErrInterrupted, cause)
	}
	return ErrInterrupted
}

func ended(err error) bool { return errors.Is(err, ErrInterrupted) || errors.Is(err, ErrPaused) }

func (r *run) step(ctx context.Context, s Step) error {
	start := r.now()
	r.emit(Event{Kind: StepStarted, Step: s.ID(), Role: RoleOf(s), Message: s.Title()})
	changed, err := r.drive(ctx, s)
	if err != nil && changed {
		err = abandon(withCurrent(ctx, s), s, err)
	}
	took := r.now().Sub(start).Seconds()
	if err != nil {
		r.emit(Event{
			Kind: StepFailed, Step: s.ID(), Role: RoleOf(s), Message: s.Title(), Seconds: took,
			Error: err.Error(), Interrupted: ended(err),
		})
		if ended(err) {
			return err
		}
		return &StepError{Phase: r.phase, Step: s.ID(), Title: s.Title(), Err: r.retreat(ctx, s, err)}
	}
	kind := StepUnchanged
	if changed {
		kind = StepDone
	}
	r.mu.Lock()
	r.done++
	r.mu.Unlock()
	e := Event{Kind: kind, Step: s.ID(), Role: RoleOf(s), Message: s.Title(), Seconds: took}
	if n, ok := s.(Noter); ok && changed {
		e.Note = n.Note()
	}
	if c, ok := s.(Confider); ok && changed {
		e.Private = c.Private()
	}
	r.emit(e)
	return nil
}

// retreat goes back after a failure. The failure is what is reported, whatever becomes of the way
// back.
func (r *run) retreat(ctx context.Context, s Step, failed error) error {
	back, ok := s.(Retreater)
	if !ok {
		return failed
	}
	steps, then := back.Retreat(failed)
	r.mu.Lock()
	r.total += len(steps)
	r.mu.Unlock()
	for _, s := range steps {
		if ctx.Err() != nil {
			return fmt.Errorf("%w; on the way back: %w", failed, interrupted(ctx))
		}
		if err := r.step(ctx, s); err != nil {
			return fmt.Errorf("%w; on the way back: %w", failed, err)
		}
	}
	return then
}

// abandonLimit bounds the clean-up of a step, during which people wait for their Ctrl-C.
const abandonLimit = 10 * time.Second

// abandon lets a step clean up and returns cause. After a Revocation the objects may be others'.
func abandon(ctx context.Context, s Step, cause error) error {
	a, ok := s.(Abandoner)
	if !ok || Revoked(cause) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonLimit)
	defer cancel()
	if err := a.Abandon(ctx); err != nil {
		return fmt.Errorf("%w; then cleaning up: %w", cause, err)
	}
	return cause
}

// Drive brings one step to its proof, without events, for composed steps.
func Drive(ctx context.Context, s Step) error {
	r := &run{Runner: &Runner{}, plan: &Plan{}}
	acted, err := r.drive(ctx, s)
	if err != nil && acted {
		err = abandon(ctx, s, err)
	}
	return err
}

// drive brings a step to its proof. Each attempt looks again, so that it starts from what a
// conflict or an interruption has left.
func (r *run) drive(ctx context.Context, s Step) (changed bool, err error) {
	deadline := r.deadline(s)
	lasting, release := outlasting(ctx, s)
	defer release()
	inner, cancel := context.WithTimeout(withCurrent(lasting, s), deadline)
	defer cancel()
	a := attempts{step: s}
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.1, Steps: 20, Cap: 2 * time.Second}
	err = backoff.DelayFunc().Until(inner, true, true, func(actx context.Context) (bool, error) {
		err := a.next(actx)
		switch {
		case actx.Err() != nil && err != nil:
			err = nil // that time is up is no reason; the last error before it is
		case err == nil:
			return true, nil
		case Retryable(err):
			r.retry(&a, err)
			err = nil
		}
		return false, err
	})
	switch {
	case Revoked(err): // the write was held back before the run heard of it
		return a.acted, fmt.Errorf("%w: %w", ErrInterrupted, err)
	case err == nil || !wait.Interrupted(err):
		return a.acted, err
	case errors.Is(inner.Err(), context.Canceled):
		return a.acted, interrupted(ctx)
	case a.last == nil:
		a.last = errors.New("no answer")
	}
	return a.acted, &DeadlineError{After: deadline.String(), Err: a.last}
}

func outlasting(ctx context.Context, s Step) (lasting context.Context, release func()) {
	if _, ok := s.(Waiter); ok {
		return ctx, func() {}
	}
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); Revoked(cause) {
			cancel(cause)
		}
	})
	return lasting, func() { unhook(); cancel(nil) }
}

// attempts drive one step. While only the proof is outstanding, the proof alone is repeated; after
// any other trouble an attempt begins with a fresh look.
type attempts struct {
	step   Step
	acted  bool
	did    bool
	last   error
	guided bool
}

func (a *attempts) next(ctx context.Context) error {
	verify := a.step.Verify
	if !a.did {
		state, do, err := observe(ctx, a.step)
		switch {
		case err != nil:
			return err
		case state == Blocked:
			return fmt.Errorf("%s is blocked", a.step.ID())
		case state == Unknown:
			return NotYet("the state of %s is not known", a.step.ID())
		case state == Done:
			return nil
		}
		a.acted = true
		proof, err := do(ctx)
		if err != nil {
			return err
		}
		if proof != nil {
			verify = proof
		}
		a.did = true
	}
	err := verify(ctx)
	var later *notYetError
	if err != nil && (!errors.As(err, &later) || later.anew) {
		a.did = false
	}
	return err
}

func (r *run) retry(a *attempts, err error) {
	known := a.last != nil && a.last.Error() == err.Error()
	a.last = err
	if known {
		return
	}
	e := Event{Kind: StepRetried, Step: a.step.ID(), Role: RoleOf(a.step), Message: a.step.Title(), Error: err.Error()}
	var later *notYetError
	if errors.As(err, &later) {
		e.Kind = StepWaiting
		if g, ok := a.step.(Guide); ok && !a.guided {
			e.Guide = g.Guide()
			a.guided = e.Guide != ""
		}
	}
	r.emit(e)
}

func (r *run) deadline(s Step) time.Duration {
	if t, ok := s.(Timed); ok && t.Deadline() > 0 {
		return t.Deadline()
	}
	if r.Deadline > 0 {
		return r.Deadline
	}
	return 2 * time.Minute
}

func (r *run) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *run) emit(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Sink == nil {
		return
	}
	e.Time, e.Plan, e.Phase, e.Group, e.Done, e.Total = r.now().UTC(), r.plan.Name, r.phase, r.group, r.done, r.total
	r.Sink(e)
}
