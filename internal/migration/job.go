package migration

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/safety/lease"
)

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

// Pause asks every run of the migration to stop, and keeps others from starting.
func (j *Job[P]) Pause(ctx context.Context) error { return j.keeper().Pause(ctx, true) }

// Resume takes a pause back. The caller then carries on with what spec.desired says.
func (j *Job[P]) Resume(ctx context.Context) error { return j.keeper().Pause(ctx, false) }
