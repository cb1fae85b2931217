// Package engine runs plans: it observes each step, does what is not done, and accepts only proof.
// It knows nothing of what steps are about.
package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// State is what a step finds when it looks.
type State int

const (
	// Unknown means that the step could not find out.
	Unknown State = iota
	// Pending means that there is something to do.
	Pending
	// Done means that the step's result is already there.
	Done
	// Blocked means that the step cannot be done; State's error says why.
	Blocked
)

func (s State) String() string {
	return [...]string{"unknown", "pending", "done", "blocked"}[s]
}

// Step is the smallest thing that is done, verified and undone as one.
type Step interface {
	ID() string
	Title() string
	// State looks. It never relies on what an earlier run remembered.
	State(ctx context.Context) (State, error)
	// Do may be called again after it failed or was killed half way.
	Do(ctx context.Context) error
	// Verify returns nil only on proof. The runner repeats it until the step's deadline.
	Verify(ctx context.Context) error
}

// Undoer is a step that can be taken back.
type Undoer interface {
	// Undo is the step that takes this one back.
	Undo() Step
}

// Previewer is a step that can show what it would write, by the code that would write it.
type Previewer interface {
	Preview() ([]Change, error)
}

// Timed is a step with a deadline of its own. Zero is the runner's.
type Timed interface {
	Deadline() time.Duration
}

// Waiter is a step that writes nothing. Cancellation ends it at once; other steps are finished.
type Waiter interface {
	Waits()
}

// Abandoner is a step that cleans up after it failed or was interrupted before its proof.
type Abandoner interface {
	Abandon(ctx context.Context) error
}

// Retreater is a step after whose failure the run goes back on what it belongs to, before it ends.
type Retreater interface {
	// Retreat are the steps of the way back, and the error that the run ends with once they are
	// done.
	Retreat(failed error) ([]Step, error)
}

// Noter is a step that has something to say once it is done, such as a failure that stopped
// nothing. The text becomes the Note of StepDone; an empty one is none.
type Noter interface {
	Note() string
}

// Confider is a Noter that knows more than its Note says, for the terminal of the operator alone.
type Confider interface {
	Private() string
}

// Change is one write.
type Change struct {
	Verb   string `json:"verb"`
	Object string `json:"object"`
	Body   any    `json:"body,omitempty"`
}

// Group is a set of steps of which up to Parallel run at once. It ends when all have ended.
type Group struct {
	Title    string
	Parallel int
	Steps    []Step
}

// Phase is a named stretch of a plan with one purpose. Its groups run one after another.
type Phase struct {
	Name   string
	Title  string
	Groups []Group
	// Replan ends the run after this phase: what follows is planned from its results.
	Replan bool
	// Recheck says that results may be there already, and can be looked for.
	Recheck bool
	// Own says that the steps concern only replumb itself.
	Own bool
}

// ahead are the phases that have steps.
func (p *Plan) ahead() (all []Ahead) {
	for _, phase := range p.Phases {
		if slices.ContainsFunc(phase.Groups, func(g Group) bool { return len(g.Steps) > 0 }) {
			all = append(all, Ahead{phase.Name, phase.Title})
		}
	}
	return all
}

// Plan is what will be done, in order.
type Plan struct {
	Name   string
	Phases []Phase
}

func (p *Plan) Steps() []Step {
	var all []Step
	for _, phase := range p.Phases {
		for _, g := range phase.Groups {
			all = append(all, g.Steps...)
		}
	}
	return all
}

func (p *Plan) Names() []string {
	names := make([]string, len(p.Phases))
	for i := range p.Phases {
		names[i] = p.Phases[i].Name
	}
	return names
}

func (p *Plan) Until(phase string) (*Plan, error) {
	i := slices.Index(p.Names(), phase)
	if i < 0 {
		return nil, &UnknownPhaseError{Phase: phase, Phases: p.Names()}
	}
	return &Plan{Name: p.Name, Phases: p.Phases[:i+1]}, nil
}

// UnknownPhaseError says that a plan has no such phase.
type UnknownPhaseError struct {
	Phase  string
	Phases []string
}

func (e *UnknownPhaseError) Error() string  { return fmt.Sprintf("there is no phase %q", e.Phase) }
func (e *UnknownPhaseError) Advice() string { return "the phases are " + strings.Join(e.Phases, ", ") }

func (p *Plan) Validate() error {
	seen := map[string]bool{}
	for _, s := range p.Steps() {
		if seen[s.ID()] {
			return fmt.Errorf("plan %s has two steps with the id %s", p.Name, s.ID())
		}
		seen[s.ID()] = true
	}
	return nil
}

// Certain is the plan up to the first phase with Replan; partial reports whether more follows.
func (p *Plan) Certain() (certain *Plan, partial bool) {
	i := slices.IndexFunc(p.Phases, func(phase Phase) bool { return phase.Replan })
	if i < 0 {
		return p, false
	}
	return &Plan{Name: p.Name, Phases: p.Phases[:i+1]}, true
}

// Outstanding is the plan without steps of Recheck phases whose result is there already. It only
// looks; a step in an unknown state stays.
func (p *Plan) Outstanding(ctx context.Context) *Plan {
	out := &Plan{Name: p.Name, Phases: slices.Clone(p.Phases)}
	for i, phase := range out.Phases {
		if !phase.Recheck {
			continue
		}
		out.Phases[i].Groups = nil
		for _, g := range phase.Groups {
			g.Steps = slices.DeleteFunc(slices.Clone(g.Steps), func(s Step) bool {
				state, err := s.State(ctx)
				return err == nil && state == Done
			})
			out.Phases[i].Groups = append(out.Phases[i].Groups, g)
		}
	}
	return out
}

func (p *Plan) Hash() (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, phase := range p.Phases {
		for _, g := range phase.Groups {
			for _, s := range g.Steps {
				changes, err := Preview(s)
				if err != nil {
					return "", err
				}
				if err := enc.Encode([]any{phase.Name, g.Title, s.ID(), s.Title(), hashed(s, changes)}); err != nil {
					return "", fmt.Errorf("hashing step %s: %w", s.ID(), err)
				}
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// hashed leaves out what replumb writes for itself: whether that exists makes no other plan.
func hashed(s Step, changes []Change) []Change {
	if RoleOf(s) != RoleOwn {
		return changes
	}
	own := slices.Clone(changes)
	for i := range own {
		own[i].Verb = ""
	}
	return own
}

// Preview is what a step would write; nothing, if it does not say.
func Preview(s Step) ([]Change, error) {
	p, ok := s.(Previewer)
	if !ok {
		return nil, nil
	}
	changes, err := p.Preview()
	if err != nil {
		return nil, fmt.Errorf("previewing %s: %w", s.ID(), err)
	}
	return changes, nil
}

// InOrder is one group of steps that run one after another; none if there are no steps.
func InOrder(steps ...Step) []Group { return AtOnce(1, "", steps...) }

// AtOnce is one group of steps of which up to parallel run at once; none if there are no steps.
func AtOnce(parallel int, title string, steps ...Step) []Group {
	if len(steps) == 0 {
		return nil
	}
	return []Group{{Title: title, Parallel: parallel, Steps: steps}}
}

// Direction is where a plan goes. The words are part of the IDs of steps.
type Direction string

// The directions: to the target of a migration, and back.
const (
	Forward  Direction = "forward"
	Backward Direction = "back"
)

func (d Direction) Opposite() Direction {
	if d == Backward {
		return Forward
	}
	return Backward
}
