package nodes

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/spec/hook"
)

// Request is what an action is told about machines that are to come or to end. docs/hooks.md shows one.
type Request struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Migration  string            `json:"migration"`
	Run        hook.Run          `json:"run"`
	Action     string            `json:"action"`
	Role       v1alpha1.NodeRole `json:"role"`
	// Count is how many nodes there have to be, of an action that makes them.
	Count int `json:"count,omitempty"`
	// Node is the one that is to end.
	Node *v1alpha1.NodeStatus `json:"node,omitempty"`
}

// The actions.
const (
	actionProvision = "provision"
	actionTerminate = "terminate"
)

// Environ implements callout.Environer.
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

// outside is what only those can do who own the infrastructure: by an action or, where there is none, by hand. It is done when
// done says so; what the action says of itself is not believed.
type outside struct {
	id, title string
	// guide tells people what to do, if there is no action.
	guide   string
	action  *v1alpha1.Action
	request Request
	// before runs ahead of everything that cannot be taken back.
	before func(context.Context) error
	// after makes the cluster follow, and done looks whether it is so.
	after func(context.Context) error
	done  func(context.Context) error
	wait  time.Duration
	// answer, if set, is what the action may say.
	answer any

	called bool
}

var (
	_ engine.Guide = (*outside)(nil)
	_ engine.Timed = (*outside)(nil)
)

func (s *outside) ID() string    { return s.id }
func (s *outside) Title() string { return s.title }

// Guide implements engine.Guide.
func (s *outside) Guide() string {
	if s.action != nil {
		return ""
	}
	return s.guide
}

// Deadline implements engine.Timed.
func (s *outside) Deadline() time.Duration {
	if s.action != nil {
		return s.wait + s.action.Timeout.Duration + 15*time.Second
	}
	return s.wait
}

// Waits implements engine.Waiter: whoever interrupts a run shall not have to wait for machines.
func (s *outside) Waits() {}

func (s *outside) State(ctx context.Context) (engine.State, error) { return stateOf(s.done(ctx)) }

// Do calls the action, once in a run. A run that was cut off calls it again: it has to stand that.
func (s *outside) Do(ctx context.Context) error {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return err
		}
	}
	if s.action == nil || s.called {
		return nil
	}
	s.called = true
	s.request.APIVersion, s.request.Kind = v1alpha1.GroupVersion.String(), "NodeRequest"
	// Not cut off with the run: half a terraform apply is worse than a late Ctrl-C.
	err := callout.Call(context.WithoutCancel(ctx), *s.action, &s.request, s.answer)
	if err != nil && !errors.Is(err, callout.ErrNoAnswer) {
		return &hook.FailedError{Hook: s.request.Action, Cause: err}
	}
	return nil
}

func (s *outside) Verify(ctx context.Context) error {
	if s.after != nil {
		if err := s.after(ctx); err != nil {
			return err
		}
	}
	return s.done(ctx)
}

// Preview implements engine.Previewer.
func (s *outside) Preview() ([]engine.Change, error) {
	if s.action == nil {
		return nil, nil
	}
	return []engine.Change{{Verb: "call", Object: callout.Name(*s.action), Body: s.request}}, nil
}

// stateOf is what a look says of a step that verifies by looking.
func stateOf(err error) (engine.State, error) {
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}
