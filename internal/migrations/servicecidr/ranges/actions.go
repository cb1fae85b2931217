package ranges

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/spec/hook"
)

// GateRequest is given to the action of a gate. docs/hooks.md shows one.
type GateRequest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Migration  string `json:"migration"`
	// Cluster is the one that the migration is of.
	Cluster engine.Identity   `json:"cluster"`
	Run     hook.RunPurpose   `json:"run"`
	Gate    v1alpha1.GateName `json:"gate"`
	// Want is an address, addresses or ranges separated by commas, or a range that has to be seen.
	// Keep is an address that has to stay beside it.
	Want string `json:"want"`
	Keep string `json:"keep,omitempty"`
}

func fieldOf(g v1alpha1.GateName) string { return "spec.serviceCIDR.actions." + string(g) }

func (r *GateRequest) Environ() []string {
	return append(r.Cluster.Environ(), "REPLUMB_MIGRATION="+r.Migration, "REPLUMB_RUN="+string(r.Run), "REPLUMB_ACTION="+string(r.Gate),
		"REPLUMB_WANT="+r.Want, "REPLUMB_KEEP="+r.Keep)
}

// RunTo is the command that goes in a direction.
func RunTo(to engine.Direction) hook.RunPurpose {
	if to == engine.Backward {
		return hook.Rollback
	}
	return hook.Apply
}

// CallAction has a gate call its action, if it has one; otherwise it waits for people.
func CallAction(g *engine.Gate, s services.Spec, r GateRequest) engine.Step {
	action := s.Action(r.Gate)
	if action == nil {
		return g
	}
	r.APIVersion, r.Kind, r.Migration = v1alpha1.GroupVersion.String(), "GateRequest", s.Name
	return &actionStep{Wait: g.Wait, action: callout.Once{Action: *action}, request: r, guide: g.Guide()}
}

// GateActionError does not unwrap to its cause, since the runner would retry a refused connection
// or time-out, and an action is called once in a run.
type GateActionError struct {
	Field string
	Cause error
	// Guide is how people do what it does.
	Guide string
}

func (e *GateActionError) Error() string { return fmt.Sprintf("%s failed: %v", e.Field, e.Cause) }

func (e *GateActionError) Private() string { return fault.Private(e.Cause) }

func (e *GateActionError) Advice() string {
	return "see to it that the action can do its work, then run the same command again: it calls the action again, unless the gate holds by then. " +
		"Without the action, by hand:\n" + e.Guide
}

// actionStep is a gate that calls an action, and passes by what it sees alone.
type actionStep struct {
	engine.Wait
	action  callout.Once
	request GateRequest
	guide   string
}

var (
	_ engine.Previewer = (*actionStep)(nil)
	_ engine.Timed     = (*actionStep)(nil)
)

func (*actionStep) Role() engine.StepRole { return engine.RoleCall }

func (s *actionStep) Deadline() time.Duration { return s.Wait.Deadline() + s.action.Longest() }

func (s *actionStep) Do(ctx context.Context) error {
	err := s.action.Call(ctx, &s.request, nil)
	if callout.Called(err) {
		return &GateActionError{Field: fieldOf(s.request.Gate), Cause: err, Guide: s.guide}
	}
	return err
}

func (s *actionStep) Verify(ctx context.Context) error {
	err := s.For(ctx)
	if err == nil || !engine.Retryable(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return engine.NotYet("%w", &fault.Hinted{Err: err, Hint: fieldOf(s.request.Gate) +
		" was called and did not fail, and this is still so. See what it has done; the same command calls it again. Or do by hand what is missing:\n" + s.guide})
}

func (s *actionStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "call", Object: callout.Name(s.action.Action), Body: s.request}}, nil
}
