package engine

import (
	"context"
	"time"
)

// StepRole is the purpose of a step. Notifications, metrics, the report and the comparison of plans
// go by it, never by IDs or texts.
type StepRole string

const (
	// RoleWrite is that of steps that change the cluster, unless they have one of the others.
	RoleWrite StepRole = "Write"
	// RoleMove moves the migration's subject: a Service, a pod, a node, a name.
	RoleMove StepRole = "Move"
	// RoleOwn writes replumb's own: definitions, namespace, Migration, backups, agents.
	RoleOwn StepRole = "Own"
	// RoleCheck is that of steps that stop a run on findings.
	RoleCheck StepRole = "Check"
	// RoleWait is that of steps that write nothing, and let time pass or watch.
	RoleWait StepRole = "Wait"
	// RoleBarrier is that of steps that prove that every node knows what was written before.
	RoleBarrier StepRole = "Barrier"
	// RoleGate is that of steps that wait for what only the operator can do.
	RoleGate StepRole = "Gate"
	// RoleCall has an operator's program or webhook do part of the migration.
	RoleCall StepRole = "Call"
	// RoleHook tells an operator's program or webhook about the run.
	RoleHook StepRole = "Hook"
	// RoleFinal is that of the step that passes the point of no return.
	RoleFinal StepRole = "Final"
)

// Cast is a step with a role that does not follow from what it can do.
type Cast interface {
	Role() StepRole
}

// RoleOf is a step's role, else RoleGate for a Guide, RoleWait for a Waiter, or RoleWrite.
func RoleOf(s Step) StepRole {
	if c, ok := s.(Cast); ok {
		if role := c.Role(); role != "" {
			return role
		}
	}
	if _, ok := s.(Guide); ok {
		return RoleGate
	}
	if _, ok := s.(Waiter); ok {
		return RoleWait
	}
	return RoleWrite
}

// Wait is a step that writes nothing: it lasts until something holds.
type Wait struct {
	Name, About string
	// For returns nil once it holds, and NotYet as long as it may come to hold.
	For   func(context.Context) error
	Limit time.Duration
	As    StepRole
	// Again asks For in every run. Otherwise a Wait that holds before the run is unchanged.
	Again  bool
	Remark func() string
}

func (w *Wait) ID() string    { return w.Name }
func (w *Wait) Title() string { return w.About }

func (w *Wait) Role() StepRole {
	if w.As == "" {
		return RoleWait
	}
	return w.As
}

func (*Wait) Waits()                    {}
func (w *Wait) Deadline() time.Duration { return w.Limit }

func (w *Wait) State(ctx context.Context) (State, error) {
	if w.Again {
		return Pending, nil
	}
	return StateOf(w.For(ctx))
}

func (*Wait) Do(context.Context) error           { return nil }
func (w *Wait) Verify(ctx context.Context) error { return w.For(ctx) }
func (w *Wait) Note() string                     { return said(w.Remark) }

// Gate is a Wait for what only the operator can do.
type Gate struct {
	Wait
	// Instructions tell the operator what to do; empty while that is not known yet.
	Instructions func() string
}

func (g *Gate) Role() StepRole { return RoleGate }
func (g *Gate) Guide() string  { return said(g.Instructions) }

// Write is a step whose write needs nothing from its look.
type Write struct {
	Name, About string
	// Holds is both look and proof: nil if the result is there, NotYet if not. Without Holds, Write
	// is called in every run, and its success is the proof.
	Holds func(context.Context) error
	// Write may be called again after it failed or was cut off.
	Write   func(context.Context) error
	Changes func() ([]Change, error)
	Limit   time.Duration
	As      StepRole
	Reverse func() Step
	Remark  func() string
}

func (w *Write) ID() string              { return w.Name }
func (w *Write) Title() string           { return w.About }
func (w *Write) Role() StepRole          { return w.As }
func (w *Write) Deadline() time.Duration { return w.Limit }

func (w *Write) State(ctx context.Context) (State, error) {
	if w.Holds == nil {
		return Pending, nil
	}
	return StateOf(w.Holds(ctx))
}

func (w *Write) Do(ctx context.Context) error { return w.Write(ctx) }

func (w *Write) Verify(ctx context.Context) error {
	if w.Holds == nil {
		return nil
	}
	return w.Holds(ctx)
}

func (w *Write) Preview() ([]Change, error) { return w.Changes() }

func (w *Write) Undo() Step {
	if w.Reverse == nil {
		return nil
	}
	return w.Reverse()
}

func (w *Write) Note() string { return said(w.Remark) }

// Interruptible is a Write that cancellation ends at once, since no part of it must be finished.
type Interruptible struct{ *Write }

func (Interruptible) Waits() {}

func (i Interruptible) Role() StepRole {
	if i.As == "" {
		return RoleWrite
	}
	return i.As
}

// Observed is a step whose write needs what its look has seen. Look hands it over by value and
// nothing is kept in the step between the two, so an attempt never writes by what an earlier one
// saw.
type Observed[T any] struct {
	Name, About string
	// Look says how things are, and what it has seen.
	Look func(context.Context) (State, T, error)
	// Write is given what the look right before it has seen.
	Write func(context.Context, T) error
	// Answered, if set, is called in place of Write. It returns a proof by the answers to its
	// writes, which is asked once, before Proof; nil if there is none.
	Answered func(context.Context, T) (func(context.Context) error, error)
	// Proof returns nil only on proof. Default: Look finds Done.
	Proof   func(context.Context) error
	Changes func() ([]Change, error)
	Limit   time.Duration
	As      StepRole
	Reverse func() Step
	Remark  func() string
	// GoBack, if set, is the way back after a failure (see Retreater).
	GoBack func(failed error) ([]Step, error)
}

func (o *Observed[T]) ID() string              { return o.Name }
func (o *Observed[T]) Title() string           { return o.About }
func (o *Observed[T]) Role() StepRole          { return o.As }
func (o *Observed[T]) Note() string            { return said(o.Remark) }
func (o *Observed[T]) Deadline() time.Duration { return o.Limit }

func (o *Observed[T]) State(ctx context.Context) (State, error) {
	state, _, err := o.Look(ctx)
	return state, err
}

func (o *Observed[T]) Do(ctx context.Context) error {
	state, seen, err := o.Look(ctx)
	if err != nil || state != Pending {
		return err
	}
	_, err = o.write(ctx, seen)
	return err
}

// write looks again if the object is gone by now: there may be nothing left to do.
func (o *Observed[T]) write(ctx context.Context, seen T) (proof func(context.Context) error, err error) {
	if o.Answered != nil {
		proof, err = o.Answered(ctx, seen)
	} else {
		err = o.Write(ctx, seen)
	}
	if vanished(err) {
		err = NotYet("%w", err)
	}
	return proof, err
}

func (o *Observed[T]) observe(ctx context.Context) (State, doer, error) {
	state, seen, err := o.Look(ctx)
	return state, func(ctx context.Context) (func(context.Context) error, error) { return o.write(ctx, seen) }, err
}

func (o *Observed[T]) Verify(ctx context.Context) error {
	if o.Proof != nil {
		return o.Proof(ctx)
	}
	state, _, err := o.Look(ctx)
	if err == nil && state != Done {
		return NotYet("%s: not done yet", o.Name)
	}
	return err
}

func (o *Observed[T]) Preview() ([]Change, error) { return o.Changes() }

func (o *Observed[T]) Undo() Step {
	if o.Reverse == nil {
		return nil
	}
	return o.Reverse()
}

func (o *Observed[T]) Retreat(failed error) ([]Step, error) {
	if o.GoBack == nil {
		return nil, failed
	}
	return o.GoBack(failed)
}

type doer func(context.Context) (proof func(context.Context) error, err error)

type observer interface {
	observe(ctx context.Context) (State, doer, error)
}

func observe(ctx context.Context, s Step) (State, doer, error) {
	if o, ok := s.(observer); ok {
		return o.observe(ctx)
	}
	state, err := s.State(ctx)
	return state, func(ctx context.Context) (func(context.Context) error, error) { return nil, s.Do(ctx) }, err
}

// StateOf is the state of a step whose look is its proof: Done for nil, Pending for a retryable
// error, else Unknown.
func StateOf(err error) (State, error) {
	switch {
	case err == nil:
		return Done, nil
	case Retryable(err):
		return Pending, nil
	}
	return Unknown, err
}

func said(words func() string) string {
	if words == nil {
		return ""
	}
	return words()
}

type currentKey struct{}

// Current is the step that ctx belongs to; nil outside of a run.
func Current(ctx context.Context) Step {
	s, _ := ctx.Value(currentKey{}).(Step)
	return s
}

func withCurrent(ctx context.Context, s Step) context.Context {
	return context.WithValue(ctx, currentKey{}, s)
}
