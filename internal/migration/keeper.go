// Package migration is what all kinds of migrations have in common: the Migration in the cluster
// and its status, the lock, the pause, and running plans under them.
package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
)

// Get returns nil if there is no such Migration, or no definition of Migration at all.
func Get(ctx context.Context, c client.Client, name string) (*v1alpha1.Migration, error) {
	m := &v1alpha1.Migration{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, m)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("migration %s: %w", name, err)
	}
	return m, nil
}

// List returns all Migrations of the cluster, by name.
func List(ctx context.Context, c client.Client) ([]v1alpha1.Migration, error) {
	all := &v1alpha1.MigrationList{}
	if err := c.List(ctx, all); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("listing migrations: %w", err)
	}
	slices.SortFunc(all.Items, func(a, b v1alpha1.Migration) int { return strings.Compare(a.Name, b.Name) })
	return all.Items, nil
}

// Effective merges the recorded Migration into the given one: see spec.Merge. It fails with a
// *ForeignCallsError if it would call what only the recorded one names.
func Effective(have, given *v1alpha1.Migration) (*v1alpha1.Migration, error) {
	whole, given := have.DeepCopy(), given.DeepCopy()
	spec.Default(whole)
	spec.Default(given)
	effective, _, err := spec.Merge(whole, given)
	if err != nil {
		return nil, err
	}
	if spec.Digest(effective) != spec.Digest(given) {
		return nil, &ForeignCallsError{Name: have.Name}
	}
	effective.Spec.Desired, effective.Spec.Paused = have.Spec.Desired, have.Spec.Paused // commands say it, and files need not
	effective.ObjectMeta, effective.Status = *have.ObjectMeta.DeepCopy(), *have.Status.DeepCopy()
	return effective, nil
}

// Amend records the settings of a Migration on the one in the cluster, and returns those that
// differ.
func Amend(ctx context.Context, c client.Client, m *v1alpha1.Migration) ([]spec.FieldChange, error) {
	have, err := Get(ctx, c, m.Name)
	if err != nil || have == nil {
		return nil, err
	}
	whole, given := have.DeepCopy(), m.DeepCopy()
	spec.Default(whole)
	spec.Default(given)
	effective, changes, err := spec.Merge(whole, given)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	return changes, (&Keeper{Client: c, Name: m.Name}).Change(ctx, func(s *v1alpha1.MigrationSpec) {
		desired, paused := s.Desired, s.Paused
		*s = effective.Spec
		s.Desired, s.Paused = desired, paused
	})
}

// UpdateStatus changes the status of a Migration, looking again on conflict.
func UpdateStatus(ctx context.Context, c client.Client, name string, change func(*v1alpha1.MigrationStatus)) error {
	return UpdateRecorded(ctx, c, name, func(m *v1alpha1.Migration) error { change(&m.Status); return nil })
}

// UpdateRecorded is UpdateStatus for changes that depend on the spec: it is that of the moment in
// which the status is written. An error of change ends it.
func UpdateRecorded(ctx context.Context, c client.Client, name string, change func(*v1alpha1.Migration) error) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := c.Get(ctx, client.ObjectKey{Name: name}, m); err != nil {
			return fmt.Errorf("migration %s: %w", name, err)
		}
		was := m.Status.DeepCopy()
		if err := change(m); err != nil {
			return err
		}
		if m.Status.Phase == v1alpha1.PhaseApplying && was.Phase != v1alpha1.PhaseApplying {
			m.Status.Attempt++
		}
		observed(m)
		if equality.Semantic.DeepEqual(was, &m.Status) {
			return nil
		}
		return c.Status().Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// maxTakenBack is as many as a status keeps.
const maxTakenBack = 256

// NoteTakenBack returns a function that records in the status of a Migration that somebody undid a
// restart. Each workload is there once.
func (t Deps) NoteTakenBack(name string) func(context.Context, v1alpha1.TakenBackStatus) error {
	return func(ctx context.Context, restart v1alpha1.TakenBackStatus) error {
		return UpdateStatus(ctx, t.Client(), name, func(st *v1alpha1.MigrationStatus) {
			known := slices.ContainsFunc(st.TakenBack, func(r v1alpha1.TakenBackStatus) bool { return r.UID == restart.UID })
			if !known && len(st.TakenBack) < maxTakenBack {
				st.TakenBack = append(st.TakenBack, restart)
			}
		})
	}
}

func observed(m *v1alpha1.Migration) {
	m.Status.ObservedGeneration, m.Status.Type = m.Generation, m.Spec.Type()
	for i := range m.Status.Conditions {
		m.Status.Conditions[i].ObservedGeneration = m.Generation
	}
}

// SetReady sets the condition Ready.
func SetReady(st *v1alpha1.MigrationStatus, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&st.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message,
	})
}

// StateError says that a migration is not where a command needs it.
type StateError struct {
	Name    string
	Problem string
	Hint    string
}

func (e *StateError) Error() string { return fmt.Sprintf("migration %s %s", e.Name, e.Problem) }

func (e *StateError) Advice() string { return e.Hint }

// Applicable refuses to apply a migration that has finished, or has begun to.
func Applicable(m *v1alpha1.Migration) error {
	switch {
	case m.Status.Phase == v1alpha1.PhaseFinished:
		return &StateError{Name: m.Name, Problem: "is finished", Hint: "give a new migration another name"}
	case m.Status.PointOfNoReturnPassed:
		return &StateError{Name: m.Name, Problem: "has begun to finish", Hint: "replumb finish " + m.Name}
	}
	return nil
}

// Reversible refuses a rollback beyond the point of no return. wayBack is how to return from there.
func Reversible(m *v1alpha1.Migration, wayBack string) error {
	if !m.Status.PointOfNoReturnPassed {
		return nil
	}
	return &StateError{
		Name: m.Name, Problem: "has passed the point of no return and cannot be rolled back",
		Hint: wayBack,
	}
}

// finishable refuses to finish a migration that is on its way back, or was.
func finishable(m *v1alpha1.Migration) error {
	switch m.Status.Phase {
	case v1alpha1.PhaseRollingBack:
		return &StateError{Name: m.Name, Problem: "is being rolled back; there is nothing to finish", Hint: "replumb rollback " + m.Name + " carries on"}
	case v1alpha1.PhaseRolledBack:
		return &StateError{
			Name: m.Name, Problem: "is rolled back; there is nothing to finish",
			Hint: "to move again, replumb apply -f FILE; kubectl get migration " + m.Name + " -o yaml prints the file",
		}
	}
	return nil
}

// Keeper keeps one Migration in the cluster up to date while runs go on.
type Keeper struct {
	Client client.Client
	Name   string
	// Holder is who holds the lock. Default: this process.
	Holder *lease.Holder
	Now    func() time.Time
	Guard  Guard
}

// Stalling is an error after which no run goes on before a person has done something.
type Stalling interface {
	error
	// Stalls is the reason of the condition Stalled.
	Stalls() string
}

// Guard watches a run, and ends it by cancelling its context with a cause.
type Guard interface {
	// Start watches until stop is called.
	Start(ctx context.Context) (guarded context.Context, stop func())
	// Hold is asked before each group of steps, and says engine.NotYet as long as none may begin.
	Hold(ctx context.Context) error
	// HoldLimit is for how long it may say so. It ends the run itself before.
	HoldLimit() time.Duration
}

// Status changes the status of the Migration, looking again on conflict.
func (k *Keeper) Status(ctx context.Context, change func(*v1alpha1.MigrationStatus)) error {
	return UpdateStatus(ctx, k.Client, k.Name, change)
}

// Change changes the spec of the Migration, looking again on conflict.
func (k *Keeper) Change(ctx context.Context, change func(*v1alpha1.MigrationSpec)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have := &v1alpha1.Migration{}
		if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Name}, have); err != nil {
			return fmt.Errorf("migration %s: %w", k.Name, err)
		}
		was := have.DeepCopy()
		if change(&have.Spec); equality.Semantic.DeepEqual(was.Spec, have.Spec) {
			return nil
		}
		return k.Client.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	})
}

// Desire writes down how far the migration shall go.
func (k *Keeper) Desire(ctx context.Context, d v1alpha1.DesiredState) error {
	return k.Change(ctx, func(s *v1alpha1.MigrationSpec) { s.Desired = d })
}

// Pause asks every run of the migration to stop, and keeps others from starting; false takes that
// back.
func (k *Keeper) Pause(ctx context.Context, paused bool) error {
	if err := k.Change(ctx, func(s *v1alpha1.MigrationSpec) { s.Paused = paused }); err != nil {
		return err
	}
	return k.Status(ctx, func(st *v1alpha1.MigrationStatus) {
		c := metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonResumed, Message: "runs may go on",
		}
		if paused {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonPaused, "a pause was asked for"
		}
		meta.SetStatusCondition(&st.Conditions, c)
	})
}

// MayRun returns engine.ErrPaused while a pause is asked for.
func (k *Keeper) MayRun(ctx context.Context) error {
	m, err := Get(ctx, k.Client, k.Name)
	if err != nil || m == nil || !m.Spec.Paused {
		return err
	}
	return engine.ErrPaused
}

func (k *Keeper) mayGoOn(ctx context.Context) error {
	if err := k.MayRun(ctx); err != nil || k.Guard == nil {
		return err
	}
	return k.Guard.Hold(ctx)
}

// Locked does something while no other replumb works on the cluster. Losing the lock cancels it.
func (k *Keeper) Locked(ctx context.Context, command string, do func(context.Context) error) error {
	holder := lease.Self(k.Name, "replumb "+command)
	if k.Holder != nil {
		holder = *k.Holder
	}
	held, err := lease.Acquire(ctx, k.Client, holder, k.Now)
	if err != nil {
		return err
	}
	err = k.guarded(held.Context(ctx), do)
	// Not ctx: the usual reason to be here early is that it was cancelled.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if releaseErr := held.Release(last); releaseErr != nil && err == nil {
		return fmt.Errorf("releasing the lock: %w", releaseErr)
	}
	return err
}

func (k *Keeper) guarded(ctx context.Context, do func(context.Context) error) error {
	if k.Guard == nil {
		return do(ctx)
	}
	ctx, stop := k.Guard.Start(ctx)
	defer stop()
	return do(ctx)
}

// Run runs a plan, ends it when a pause is asked for, and writes down how it went.
func (k *Keeper) Run(ctx context.Context, r *engine.Runner, plan *engine.Plan, phase v1alpha1.Phase, counts func() v1alpha1.Counts) error {
	hash, err := plan.Hash()
	if err != nil {
		return err
	}
	this := *r
	this.Hold = k.mayGoOn
	if k.Guard != nil {
		this.HoldLimit = k.Guard.HoldLimit()
	}
	this.Sink = k.staged(ctx, plan, phase, r.Sink)
	ticker := time.NewTicker(pauseEvery)
	defer ticker.Stop()
	watched, stop := watchPause(ctx, k.MayRun, ticker.C)
	err = this.Run(watched, plan)
	stop()
	if err != nil {
		return k.failed(context.WithoutCancel(ctx), err, phase)
	}
	// A run that ends after phase check has recorded no Migration.
	return client.IgnoreNotFound(k.Status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.PlanHash, st.Counts, st.LastError = phase, hash, counts(), ""
	}))
}

// staged writes the phase and the waiting gates to the status, for readers that outlive a killed
// run. The next write makes up for one that fails.
func (k *Keeper) staged(ctx context.Context, plan *engine.Plan, now v1alpha1.Phase, sink func(engine.Event)) func(engine.Event) {
	own, waiting := map[string]bool{}, &gates{}
	for _, phase := range plan.Phases {
		own[phase.Name] = phase.Own
	}
	return func(e engine.Event) {
		if sink != nil {
			sink(e)
		}
		if e.Kind == engine.PhaseStarted && e.Total > 0 && !own[e.Phase] {
			_ = k.Status(ctx, func(st *v1alpha1.MigrationStatus) {
				st.Phase, st.Stage = now, e.Phase
				if meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionStalled) {
					UnderWay.Say(st, v1alpha1.ReasonInProgress, "a run is in phase "+e.Phase)
				}
			})
		}
		if waiting.observe(e) {
			_ = k.Status(ctx, func(st *v1alpha1.MigrationStatus) { Await(st, v1alpha1.ReasonGateClosed, waiting.text()) })
		}
	}
}

// failed writes down why a run stopped, and returns the reason. Without the lock others may be at
// work on the Migration.
func (k *Keeper) failed(ctx context.Context, cause error, phase v1alpha1.Phase) error {
	var blocked *findings.BlockedError
	if errors.As(cause, &blocked) || engine.Revoked(cause) {
		return cause
	}
	writeErr := k.Status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.LastError = phase, cause.Error()
		reason := v1alpha1.ReasonFailed
		if errors.Is(cause, engine.ErrPaused) {
			st.LastError, reason = "", v1alpha1.ReasonPaused
		}
		if errors.Is(cause, engine.ErrSuperseded) {
			st.LastError, reason = "", v1alpha1.ReasonInProgress
		}
		SetReady(st, metav1.ConditionFalse, reason, cause.Error())
		var stalls Stalling
		if errors.As(cause, &stalls) {
			Stalled.Say(st, stalls.Stalls(), cause.Error())
		}
	})
	if writeErr != nil && !apierrors.IsNotFound(writeErr) {
		return errors.Join(cause, writeErr)
	}
	return cause
}

// Settle writes down that the cluster is as spec.desired says. An approval of finish is of no use
// any more, unless this is what it waits for.
func (k *Keeper) Settle(ctx context.Context, phase v1alpha1.Phase, counts v1alpha1.Counts, tiers []v1alpha1.TierStatus) error {
	if phase != v1alpha1.PhaseMoved {
		if err := k.withdraw(ctx); err != nil {
			return err
		}
	}
	return k.Status(ctx, func(st *v1alpha1.MigrationStatus) {
		st.Phase, st.Counts, st.Tiers, st.LastError, st.Stage = phase, counts, tiers, "", ""
		AsDesired.Say(st, v1alpha1.ReasonAsDesired, "the cluster is as spec.desired says")
		Await(st, v1alpha1.ReasonNoGate, "")
	})
}

// Locked reports whether a run of any migration is at work, here or elsewhere.
func Locked(ctx context.Context, c client.Client) (bool, error) {
	holder, err := lease.Current(ctx, c)
	return holder != nil, err
}

func (k *Keeper) withdraw(ctx context.Context) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := k.Client.Get(ctx, client.ObjectKey{Name: k.Name}, m); err != nil {
			return fmt.Errorf("migration %s: %w", k.Name, err)
		}
		if !Withdraw(m) {
			return nil
		}
		return k.Client.Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
}
