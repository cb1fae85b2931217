package nodes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Request is the input of an action that creates or terminates machines. docs/hooks.md shows one.
type Request struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Migration  string            `json:"migration"`
	Run        hook.RunPurpose   `json:"run"`
	Action     string            `json:"action"`
	Role       v1alpha1.NodeRole `json:"role"`
	// Count is how many nodes there have to be, of an action that creates them.
	Count int `json:"count,omitempty"`
	// Groups are the kinds of old nodes whose pods need a place, of an action that creates workers.
	Groups []NodeGroup          `json:"groups,omitempty"`
	Node   *v1alpha1.NodeStatus `json:"node,omitempty"`
}

// The actions. Only control-plane nodes are retired.
const (
	actionProvision = "provision"
	actionRetire    = "retire"
	actionTerminate = "terminate"
)

func (r *Request) Environ() []string {
	all := []string{
		"REPLUMB_MIGRATION=" + r.Migration,
		"REPLUMB_RUN=" + string(r.Run),
		"REPLUMB_ACTION=" + r.Action,
		"REPLUMB_ROLE=" + string(r.Role),
	}
	if r.Node != nil {
		all = append(all, "REPLUMB_NODE="+r.Node.Name, "REPLUMB_PROVIDER_ID="+r.Node.ProviderID,
			"REPLUMB_ADDRESSES="+strings.Join(r.Node.Addresses, ","))
	}
	return all
}

// request is about a worker, unless it is filled in otherwise.
func (l live) request(action string) Request {
	return Request{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeRequest",
		Migration: l.spec.Name, Run: hook.Apply, Action: action, Role: v1alpha1.RoleWorker,
	}
}

// effect is what a step writes to the cluster beside what happens outside of it.
type effect struct {
	do      func(context.Context) error
	changes func() ([]engine.Change, error)
}

func (e effect) run(ctx context.Context) error {
	if e.do == nil {
		return nil
	}
	return e.do(ctx)
}

func (e effect) preview() ([]engine.Change, error) {
	if e.changes == nil {
		return nil, nil
	}
	return e.changes()
}

func (e effect) then(next effect) effect {
	return effect{
		do: func(ctx context.Context) error {
			if err := e.run(ctx); err != nil {
				return err
			}
			return next.run(ctx)
		},
		changes: func() ([]engine.Change, error) {
			first, err := e.preview()
			if err != nil {
				return nil, err
			}
			second, err := next.preview()
			return slices.Concat(first, second), err
		},
	}
}

// outside is for those who own the infrastructure, by an action or by hand. Only done decides.
type outside struct {
	id, title string
	// guide says what to do, if there is no action.
	guide   string
	action  *v1alpha1.Action
	request Request
	// fill, if set, completes the request when it is sent: a plan must not change with every pod.
	fill func(context.Context, *Request) error
	// answer, if set, is what the action may answer.
	answer any
	// before comes ahead of everything that cannot be taken back, after has the cluster follow.
	before, after effect
	done          func(context.Context) error
	wait          time.Duration
}

func (o outside) step() engine.Step {
	s := outsideStep{o}
	if o.action == nil {
		return &gateStep{s}
	}
	return &actionStep{outsideStep: s, once: callout.Once{Action: *o.action}}
}

type outsideStep struct{ outside }

var (
	_ engine.Guide     = (*gateStep)(nil)
	_ engine.Timed     = (*gateStep)(nil)
	_ engine.Previewer = (*gateStep)(nil)
	_ engine.Timed     = (*actionStep)(nil)
	_ engine.Previewer = (*actionStep)(nil)
)

func (s *outsideStep) ID() string    { return s.id }
func (s *outsideStep) Title() string { return s.title }

// Waits lets an interrupted run end at once. It writes, all the same: see Preview.
func (s *outsideStep) Waits() {}

func (s *outsideStep) State(ctx context.Context) (engine.State, error) {
	return engine.StateOf(s.done(ctx))
}

func (s *outsideStep) Verify(ctx context.Context) error {
	if err := s.after.run(ctx); err != nil {
		return err
	}
	return s.done(ctx)
}

type gateStep struct{ outsideStep }

// Verify holds the lock while people replace the machine of the only API server.
func (s *gateStep) Verify(ctx context.Context) error {
	return lease.Outlasting(s.outsideStep.Verify)(ctx)
}

func (*gateStep) Role() engine.StepRole { return engine.RoleGate }

func (s *gateStep) Guide() string { return s.guide }

func (s *gateStep) Deadline() time.Duration { return s.wait }

func (s *gateStep) Do(ctx context.Context) error { return s.before.run(ctx) }

func (s *gateStep) Preview() ([]engine.Change, error) { return s.before.then(s.after).preview() }

// actionStep calls an action, and waits until the cluster shows what it did.
type actionStep struct {
	outsideStep

	once callout.Once
}

func (*actionStep) Role() engine.StepRole { return engine.RoleCall }

func (s *actionStep) Deadline() time.Duration { return s.wait + s.once.Longest() }

func (s *actionStep) Do(ctx context.Context) error {
	if err := s.before.run(ctx); err != nil {
		return err
	}
	request := s.request
	if s.fill != nil {
		if err := s.fill(ctx, &request); err != nil {
			return err
		}
	}
	err := s.once.Call(ctx, &request, s.answer)
	switch {
	case errors.Is(err, callout.ErrNoAnswer):
		return nil
	case callout.Called(err):
		return &hook.FailedError{Hook: s.request.Action, Cause: err}
	}
	return err
}

func (s *actionStep) Preview() ([]engine.Change, error) {
	call := effect{changes: func() ([]engine.Change, error) {
		return []engine.Change{{Verb: "call", Object: callout.Name(*s.action), Body: s.request}}, nil
	}}
	return s.before.then(call).then(s.after).preview()
}
