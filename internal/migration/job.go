package migration

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/safety/lease"
)

// maxRounds bounds how often a run looks again for what appeared while it ran.
const maxRounds = 8

// Plans are what a kind of migration makes of one look at the cluster.
type Plans interface {
	// Found are the findings of that look.
	Found() findings.Findings
	// Apply goes to the point of no return, Rollback back from there, and Finish past it.
	Apply() *engine.Plan
	Rollback() *engine.Plan
	Finish() *engine.Plan
	Counts() v1alpha1.Counts
	// Left says what apply has not done yet; nothing, if it is through.
	Left() string
	// Early says why it is too early to finish, after "cannot be finished: "; empty if it is not.
	Early() string

	// The methods below have defaults in Base.

	// RunBeside begins what goes on beside each run; stop ends it and returns its error.
	RunBeside(ctx context.Context) (stop func() error)
	// Arrive does what is left once nothing remains of apply, before that is written down.
	Arrive(ctx context.Context) error
	// Amiss is what apply could not do, once it has done everything else.
	Amiss() error
	// Follows reports whether apply goes on round by round after others. Its rounds are not
	// counted, and the last phase is not over.
	Follows() bool
	// Summary is what the status shows once a command is through.
	Summary(phase v1alpha1.Phase, counts v1alpha1.Counts) (v1alpha1.Counts, []v1alpha1.TierStatus)
}

// RunGuard goes with the runs of a job.
type RunGuard interface {
	// Found gets what was found before apply begins.
	Found(all findings.Findings)
	// Keep has the run that is about to begin watched. A lenient one is never stopped.
	Keep(k *Keeper, lenient bool) *Keeper
}

// Kind is what differs between kinds of migrations.
type Kind[P Plans] interface {
	About() About
	// Adopt takes over what the Migration in the cluster has settled, and fails if it is about
	// something else; nil is none.
	Adopt(have *v1alpha1.Migration) error
	// Examine looks at the cluster. Nothing is written.
	Examine(ctx context.Context) (P, error)
	// Describe is the plan for people, Applied the outcome of apply, PreviewFinish what becomes
	// final.
	Describe(p P) Details
	Applied(p P) ApplyResult
	PreviewFinish(ctx context.Context, p P) (FinishPreview, error)

	// The methods below have defaults in Subject.

	// Turn learns where a command goes, before anything is planned for it.
	Turn(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error
	// MayLook asks for the user's rights, and fails without those that to look needs.
	MayLook(ctx context.Context) error
	// Unfinished plans to complete, or on the way back to undo, what a run that was cut off has
	// left half done; nil, if nothing is. Every command runs it first under the lock.
	Unfinished(ctx context.Context, to v1alpha1.DesiredState) (*engine.Plan, error)
	// AnotherRound reports whether another look at the cluster resolves an error.
	AnotherRound(ctx context.Context, err error) bool
}

// Job takes one Migration through its commands.
type Job[P Plans] struct {
	Kind   Kind[P]
	Client client.Client
	Name   string
	// Guard, if there is one, goes with every run.
	Guard RunGuard

	// Until is the phase to stop after; empty means to go on to the end.
	Until string
	// Expected is a reviewed plan that apply must not exceed; nil allows anything.
	Expected *Expectation
	// Holder is who holds the lock. Default: this process.
	Holder   *lease.Holder
	Directed bool
	Now      func() time.Time
}

func (j *Job[P]) keeper() *Keeper {
	now := j.Now
	if now == nil {
		now = time.Now
	}
	return &Keeper{Client: j.Client, Name: j.Name, Holder: j.Holder, Now: now}
}

// locked does something while no other replumb works on the cluster.
func (j *Job[P]) locked(ctx context.Context, command string, lenient bool, do func(context.Context) error) error {
	k := j.keeper()
	if j.Directed {
		command = "operator, " + command
	}
	if j.Guard != nil {
		k = j.Guard.Keep(k, lenient)
	}
	return k.Locked(ctx, command, do)
}

type synchronizer interface {
	Synchronize(ctx context.Context, now func() time.Time)
}

// adopt returns the Migration in the cluster, nil if there is none, and sets the API server's
// clock.
func (j *Job[P]) adopt(ctx context.Context) (*v1alpha1.Migration, error) {
	if err := j.Kind.MayLook(ctx); err != nil {
		return nil, err
	}
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil {
		return nil, err
	}
	if c, ok := j.Client.(synchronizer); ok && j.Now != nil {
		c.Synchronize(ctx, j.Now)
	}
	if c, ok := j.Client.(Identifier); ok {
		if err := Bound(ctx, c, have); err != nil {
			return nil, err
		}
	}
	return have, j.Kind.Adopt(have)
}

func (j *Job[P]) turn(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error {
	if have == nil {
		return nil
	}
	return j.Kind.Turn(ctx, have, to)
}

func (j *Job[P]) run(ctx context.Context, r *engine.Runner, p P, plan *engine.Plan, phase v1alpha1.Phase) error {
	stop := p.RunBeside(ctx)
	err := j.keeper().Run(ctx, r, plan, phase, p.Counts)
	if amiss := stop(); err != nil && amiss != nil {
		return fmt.Errorf("%w; beside it, %w", err, amiss)
	}
	return err
}

func (j *Job[P]) record(ctx context.Context, p P, phase v1alpha1.Phase) error {
	counts := p.Counts()
	if phase == v1alpha1.PhaseRolledBack {
		counts = v1alpha1.Counts{}
	}
	counts, tiers := p.Summary(phase, counts)
	return j.keeper().Settle(ctx, phase, counts, tiers)
}

func (j *Job[P]) complete(ctx context.Context, r *engine.Runner, command string, to v1alpha1.DesiredState) error {
	have, err := j.adopt(ctx)
	if err != nil || have == nil {
		return err
	}
	if plan, err := j.Kind.Unfinished(ctx, to); err != nil || plan == nil {
		return err
	}
	return j.locked(ctx, command, true, func(ctx context.Context) error {
		plan, err := j.Kind.Unfinished(ctx, to) // as it is now that no one else writes
		if err != nil || plan == nil {
			return err
		}
		return r.Run(ctx, plan)
	})
}

// Look makes plans of the cluster as it is.
func (j *Job[P]) Look(ctx context.Context) (plans P, err error) {
	if _, err := j.adopt(ctx); err != nil {
		return plans, err
	}
	return j.Kind.Examine(ctx)
}

func (j *Job[P]) applicable(ctx context.Context) (plans P, err error) {
	have, err := j.adopt(ctx)
	if err != nil {
		return plans, err
	}
	if have != nil {
		if err := Applicable(have); err != nil {
			return plans, err
		}
	}
	if err := j.turn(ctx, have, v1alpha1.DesiredApplied); err != nil {
		return plans, err
	}
	return j.Kind.Examine(ctx)
}

// Apply runs the plan of apply until nothing is left of it, and returns the last look.
func (j *Job[P]) Apply(ctx context.Context, r *engine.Runner) (last P, err error) {
	if err := j.complete(ctx, r, "apply", v1alpha1.DesiredApplied); err != nil {
		return last, err
	}
	p, err := j.applicable(ctx)
	if err != nil {
		return last, err
	}
	if len(p.Found().Blocking()) > 0 { // before anything is written, the lock included
		if holder, err := lease.Current(ctx, j.Client); err == nil && holder != nil {
			return last, &lease.HeldError{Holder: *holder}
		}
		return last, j.run(ctx, r, p, p.Apply(), v1alpha1.PhaseApplying)
	}
	if j.Expected != nil {
		if err := j.Expected.Check(p.Apply().Outstanding(ctx)); err != nil {
			return last, err
		}
	}
	if j.Guard != nil {
		j.Guard.Found(p.Found())
	}
	err = j.locked(ctx, "apply", false, func(ctx context.Context) error {
		if err := j.still(ctx, Applicable); err != nil {
			return err
		}
		if err := j.setOut(ctx, v1alpha1.PhaseApplying); err != nil {
			return err
		}
		last, err = j.rounds(ctx, r, p)
		return err
	})
	return last, err
}

func (j *Job[P]) rounds(ctx context.Context, r *engine.Runner, p P) (last P, err error) {
	for left := maxRounds; left > 0; left-- {
		certain, partial := p.Apply().Certain()
		plan, stops := j.bounded(certain)
		if partial && p.Follows() && len(plan.Phases) == len(certain.Phases) {
			left, stops = maxRounds, false
		}
		err := j.run(ctx, r, p, plan, v1alpha1.PhaseApplying)
		if err != nil && !j.Kind.AnotherRound(ctx, err) {
			return last, err
		}
		resolved := err != nil
		if p, err = replan(ctx, j.applicable); err != nil {
			return last, err
		}
		switch {
		case resolved:
		case stops:
			return p, client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) {
				SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
			}))
		case !partial && p.Left() == "":
			return p, j.arrive(ctx, p)
		}
	}
	return last, fmt.Errorf("apply did not converge after %d rounds: %s", maxRounds, p.Left())
}

// replan looks at the cluster in the middle of a command, as patiently as a step.
func replan[P Plans](ctx context.Context, look func(context.Context) (P, error)) (p P, err error) {
	err = engine.Drive(ctx, &engine.Wait{
		Name: "look", About: "Check the cluster again", Again: true,
		For: func(ctx context.Context) (err error) {
			p, err = look(ctx)
			return err
		},
	})
	return p, err
}

func (j *Job[P]) arrive(ctx context.Context, p P) error {
	if err := p.Arrive(ctx); err != nil {
		return err
	}
	if err := j.record(ctx, p, v1alpha1.PhaseMoved); err != nil {
		return err
	}
	return p.Amiss()
}

// bounded is the plan as far as it was asked for, or the whole one if it ends before.
func (j *Job[P]) bounded(plan *engine.Plan) (bounded *engine.Plan, stops bool) {
	if j.Until == "" {
		return plan, false
	}
	bounded, err := plan.Until(j.Until)
	if err != nil {
		return plan, false
	}
	return bounded, true
}

// Rollback runs the plan that goes back.
func (j *Job[P]) Rollback(ctx context.Context, r *engine.Runner) error {
	// The way back itself may yet take back an incomplete step.
	if err := j.complete(ctx, r, "rollback", v1alpha1.DesiredRolledBack); err != nil && !errors.As(err, new(*engine.StepError)) {
		return err
	}
	have, err := j.adopt(ctx)
	if err != nil {
		return err
	}
	if have != nil {
		if err := j.reversible(have); err != nil {
			return err
		}
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return err
	}
	return j.locked(ctx, "rollback", true, func(ctx context.Context) error {
		if err := j.still(ctx, j.reversible); err != nil {
			return err
		}
		if err := j.desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		return j.back(ctx, r)
	})
}

func (j *Job[P]) reversible(m *v1alpha1.Migration) error { return Reversible(m, j.Kind.About().Return) }

// still looks again under the lock: another run may have gone on since the command looked first.
func (j *Job[P]) still(ctx context.Context, state func(*v1alpha1.Migration) error) error {
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil || have == nil {
		return err
	}
	return state(have)
}

func (j *Job[P]) back(ctx context.Context, r *engine.Runner) error {
	for range maxRounds {
		p, err := replan(ctx, j.Look)
		if err != nil {
			return err
		}
		plan, partial := p.Rollback().Certain()
		if err := j.run(ctx, r, p, plan, v1alpha1.PhaseRollingBack); err != nil {
			return err
		}
		if !partial {
			return j.record(ctx, p, v1alpha1.PhaseRolledBack)
		}
	}
	return fmt.Errorf("rollback did not converge after %d rounds; run it again", maxRounds)
}

// Finishable makes the plans of finish, or says why it is too early.
func (j *Job[P]) Finishable(ctx context.Context) (plans P, err error) {
	have, err := j.adopt(ctx)
	if err != nil {
		return plans, err
	}
	if have == nil {
		return plans, &StateError{Name: j.Name, Problem: "does not exist", Hint: "replumb status lists the migrations of the cluster"}
	}
	if err := Finishable(have); err != nil {
		return plans, err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return plans, err
	}
	p, err := j.Kind.Examine(ctx)
	if err != nil {
		return plans, err
	}
	if early := p.Early(); early != "" && !have.Status.PointOfNoReturnPassed {
		return plans, &StateError{Name: j.Name, Problem: "cannot be finished: " + early, Hint: "replumb resume " + j.Name + " first, which carries apply on"}
	}
	return p, nil
}

// Finish runs the plan from which there is no way back.
func (j *Job[P]) Finish(ctx context.Context, r *engine.Runner) error {
	have, err := Get(ctx, j.Client, j.Name)
	if err != nil || have != nil && have.Status.Phase == v1alpha1.PhaseFinished {
		return err
	}
	if err := j.complete(ctx, r, "finish", v1alpha1.DesiredFinished); err != nil {
		return err
	}
	if _, err := j.Finishable(ctx); err != nil {
		return err
	}
	return j.locked(ctx, "finish", false, func(ctx context.Context) error {
		if err := j.still(ctx, Finishable); err != nil {
			return err
		}
		if err := j.desire(ctx, v1alpha1.DesiredFinished); err != nil {
			return err
		}
		p, err := j.Look(ctx) // what was found before the lock was taken may have changed
		if err != nil {
			return err
		}
		if err := j.run(ctx, r, p, p.Finish(), v1alpha1.PhaseFinishing); err != nil {
			return err
		}
		return j.record(ctx, p, v1alpha1.PhaseFinished)
	})
}

// Pause asks every run of the migration to stop, and keeps others from starting.
func (j *Job[P]) Pause(ctx context.Context) error { return j.keeper().Pause(ctx, true) }

// Resume takes a pause back. The caller then carries on with what spec.desired says.
func (j *Job[P]) Resume(ctx context.Context) error { return j.keeper().Pause(ctx, false) }

// Restrict bounds apply to the phases up to one, empty for all, and to a plan, nil for any.
func (j *Job[P]) Restrict(until string, expected *Expectation) {
	j.Until, j.Expected = until, expected
}

// Inspect looks at the cluster and makes the plan of apply. Nothing is written.
func (j *Job[P]) Inspect(ctx context.Context) (Inspection, error) {
	p, err := j.Look(ctx)
	if err != nil {
		return Inspection{}, err
	}
	return Inspection{
		Findings: p.Found(), Whole: p.Apply(), Outstanding: p.Apply().Outstanding(ctx), Details: j.Kind.Describe(p),
	}, nil
}

// RunApply is Apply with a result for people.
func (j *Job[P]) RunApply(ctx context.Context, r *engine.Runner) (ApplyResult, error) {
	p, err := j.Apply(ctx, r)
	if err != nil {
		return ApplyResult{}, err
	}
	return j.Kind.Applied(p), nil
}

// NextHint is what to do after apply.
func NextHint(name string) string {
	return fmt.Sprintf("when all is well, replumb finish %s; to go back, replumb rollback %s", name, name)
}

// FinishPreview says what finish would make final, or why it is too early.
func (j *Job[P]) FinishPreview(ctx context.Context) (FinishPreview, error) {
	p, err := j.Finishable(ctx)
	if err != nil {
		return FinishPreview{}, err
	}
	return j.Kind.PreviewFinish(ctx, p)
}
