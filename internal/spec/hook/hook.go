// Package hook makes steps of calls before and after phases, tiers and batches.
package hook

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// RunPurpose is what a run is for.
type RunPurpose string

// The kinds of runs that call hooks.
const (
	Apply    RunPurpose = "apply"
	Rollback RunPurpose = "rollback"
	Finish   RunPurpose = "finish"
)

// Request is what a hook gets. docs/hooks.md shows one.
type Request struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Hook       string `json:"hook"`
	Migration  string `json:"migration"`
	// Cluster is the one that the migration is of.
	Cluster engine.Identity     `json:"cluster"`
	Run     RunPurpose          `json:"run"`
	Moment  v1alpha1.HookMoment `json:"moment"`
	Phase   string              `json:"phase"`
	// Tier is empty for hooks of a phase.
	Tier string `json:"tier,omitempty"`
	// Batch counts from 1 within the tier. It is 0 for hooks of a phase or tier.
	Batch     int      `json:"batch,omitempty"`
	Services  []string `json:"services"`
	Workloads []string `json:"workloads,omitempty"`
	Nodes     []string `json:"nodes,omitempty"`
}

func (r Request) Environ() []string {
	return append(r.Cluster.Environ(), "REPLUMB_MIGRATION="+r.Migration, "REPLUMB_RUN="+string(r.Run))
}

// Occasion is the moment of a run at which hooks are called. Its fields are those of Request.
type Occasion struct {
	Migration string
	Cluster   engine.Identity
	Run       RunPurpose
	Moment    v1alpha1.HookMoment
	Phase     string
	Tier      string
	Batch     int
	Services  []string
	Workloads []string
	Nodes     []string
}

func (o Occasion) of() string {
	if o.Moment == v1alpha1.BeforePhase || o.Moment == v1alpha1.AfterPhase {
		return o.Phase
	}
	return o.Tier
}

// For selects the hooks that are called at a moment of the named phase or tier.
func For(hooks []v1alpha1.Hook, moment v1alpha1.HookMoment, of string) []v1alpha1.Hook {
	var out []v1alpha1.Hook
	for _, h := range hooks {
		if h.When == moment && (len(h.Of) == 0 || slices.Contains(h.Of, of)) {
			out = append(out, h)
		}
	}
	return out
}

// Steps are the calls of an occasion, in the order of the hooks. They are to run one after another.
func Steps(hooks []v1alpha1.Hook, o Occasion) []engine.Step {
	var out []engine.Step
	for _, h := range For(hooks, o.Moment, o.of()) {
		out = append(out, New(h, o))
	}
	return out
}

// Groups are the calls of an occasion, one after another; none, if there are none.
func Groups(hooks []v1alpha1.Hook, o Occasion) []engine.Group {
	steps := Steps(hooks, o)
	if len(steps) == 0 {
		return nil
	}
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

// Around puts the hooks of phases around those phases of a plan that have something to do.
func Around(plan *engine.Plan, hooks []v1alpha1.Hook, run RunPurpose, of engine.Identity) *engine.Plan {
	for i := range plan.Phases {
		phase := &plan.Phases[i]
		if len((&engine.Plan{Phases: []engine.Phase{*phase}}).Steps()) == 0 {
			continue
		}
		at := func(moment v1alpha1.HookMoment) []engine.Group {
			return Groups(hooks, Occasion{Migration: plan.Name, Cluster: of, Run: run, Moment: moment, Phase: phase.Name})
		}
		phase.Groups = slices.Concat(at(v1alpha1.BeforePhase), phase.Groups, at(v1alpha1.AfterPhase))
	}
	return plan
}

// FailedError does not unwrap to its cause: the runner would retry a refused connection or a
// timeout, but a hook counts on one call.
type FailedError struct {
	Hook string
	// Cause is a *callout.Error.
	Cause error
}

func (e *FailedError) Error() string   { return fmt.Sprintf("hook %s: %v", e.Hook, e.Cause) }
func (e *FailedError) Private() string { return fault.Private(e.Cause) }

// Step calls a hook, at least once: a resumed run cannot know whether an earlier one did.
type Step struct {
	hook v1alpha1.Hook
	on   Occasion

	mu      sync.Mutex
	note    string
	private string
}

var (
	_ engine.Timed = (*Step)(nil)
	_ engine.Noter = (*Step)(nil)
)

// New makes the step that calls a hook.
func New(h v1alpha1.Hook, o Occasion) *Step { return &Step{hook: h, on: o} }

func (s *Step) Moment() v1alpha1.HookMoment { return s.on.Moment }
func (*Step) Role() engine.StepRole         { return engine.RoleHook }

// ID implements engine.Step: hook/NAME/MOMENT/PHASE/TIER/BATCH, as far as the moment has them.
func (s *Step) ID() string {
	parts := []string{"hook", s.hook.Name, kebab(string(s.on.Moment)), s.on.Phase}
	if s.on.Tier != "" {
		parts = append(parts, s.on.Tier)
	}
	if s.on.Batch > 0 {
		parts = append(parts, strconv.Itoa(s.on.Batch))
	}
	return strings.Join(parts, "/")
}

func kebab(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func (s *Step) Title() string {
	when := "before"
	if strings.HasPrefix(string(s.on.Moment), "After") {
		when = "after"
	}
	switch {
	case s.on.Batch > 0 && s.on.Tier == "":
		return fmt.Sprintf("Call hook %s %s batch %d of phase %s", s.hook.Name, when, s.on.Batch, s.on.Phase)
	case s.on.Batch > 0:
		return fmt.Sprintf("Call hook %s %s batch %d of tier %s", s.hook.Name, when, s.on.Batch, s.on.Tier)
	case s.on.Tier != "":
		return fmt.Sprintf("Call hook %s %s tier %s", s.hook.Name, when, s.on.Tier)
	}
	return fmt.Sprintf("Call hook %s %s phase %s", s.hook.Name, when, s.on.Phase)
}

// Deadline is later than the call's own timeout, which has the better message and ends programs.
func (s *Step) Deadline() time.Duration {
	timeout := callout.DefaultTimeout
	if s.hook.Timeout != nil {
		timeout = s.hook.Timeout.Duration
	}
	return timeout + 15*time.Second
}

// State is always pending: what a hook did cannot be seen.
func (s *Step) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Cancelled runs wait for the call, since a cut-off program leaves unknown results.
func (s *Step) Do(ctx context.Context) error {
	services := s.on.Services
	if services == nil {
		services = []string{}
	}
	err := callout.Call(ctx, s.hook.Action, Request{
		APIVersion: v1alpha1.GroupVersion.String(),
		Kind:       "HookRequest",
		Hook:       s.hook.Name,
		Migration:  s.on.Migration,
		Cluster:    s.on.Cluster,
		Run:        s.on.Run,
		Moment:     s.on.Moment,
		Phase:      s.on.Phase,
		Tier:       s.on.Tier,
		Batch:      s.on.Batch,
		Services:   services,
		Workloads:  s.on.Workloads,
		Nodes:      s.on.Nodes,
	}, nil)
	if !callout.Called(err) {
		return err
	}
	if s.hook.OnFailure != v1alpha1.FailureContinue {
		return &FailedError{Hook: s.hook.Name, Cause: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note, s.private = fmt.Sprintf("the hook failed, and the run goes on: %v", err), fault.Private(err)
	return nil
}

// Verify has nothing to look at: that the call returned is all there is.
func (s *Step) Verify(context.Context) error { return nil }

// Note implements engine.Noter: why the call failed, if the run goes on nevertheless.
func (s *Step) Note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.note
}

// Private is a failed program's output, if the run goes on.
func (s *Step) Private() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.private
}
