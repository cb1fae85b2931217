package lossguard

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Watched is a job that agents watch. Jobs embed it.
type Watched struct{ agents AgentConfig }

// AgentsOf brings the agents up to date with what the migration says of them by now.
func (w *Watched) AgentsOf(t migration.Deps, name string, s *v1alpha1.MigrationSpec) *AgentConfig {
	w.agents.Bring(t, name, s)
	return &w.agents
}

func (w *Watched) Observe(o Observer) { w.agents.Observe(o) }

// Blame returns the error that a run ends with which was stopped by a loss.
func (w *Watched) Blame(ctx context.Context, loss *LossError) error { return w.agents.Blame(ctx, loss) }

// AgentConfig says whether there are agents, what they run, and who follows them. It must not be
// copied in use.
type AgentConfig struct {
	Cluster   *cluster.Cluster
	Migration string
	Spec      v1alpha1.ProofSpec
	// Runnable is what they run, if there are to be any; empty if neither the migration nor this
	// build has an image.
	Runnable pull.Image
	// None says that the migration does nothing that agents could see.
	None bool
	// Services says that it moves Services.
	Services bool
	Now      func() time.Time

	watch    *Watch
	observer Observer
}

// Bring has them be as the migration says by now.
func (c *AgentConfig) Bring(t migration.Deps, name string, s *v1alpha1.MigrationSpec) {
	c.Cluster, c.Migration, c.Spec, c.Runnable, c.Now = t.Cluster, name, s.Proof, t.ImageOf(s), t.Now
}

// Image is what agents run; none if there are to be none.
func (c *AgentConfig) Image() pull.Image {
	if c.None || c.Spec.Agents == v1alpha1.AgentsDisabled {
		return pull.Image{}
	}
	return c.Runnable
}

func (c *AgentConfig) Runs() bool { return c.Image().Name != "" }

// Roles are those of all that a migration takes, with those of agents if there are any.
func (c *AgentConfig) Roles(all access.Roles, m *v1alpha1.Migration) access.Roles {
	purposes := []access.Purpose{access.View, access.Operate}
	if c.Runs() {
		purposes = append(purposes, access.Agents)
	}
	return append(all.Of(purposes...), migration.RolesFor(m)...)
}

// AbsentSecrets finds, for a check, the pull secrets of agents that are not there.
func (c *AgentConfig) AbsentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	return c.Image().Absent(ctx, in)
}

// Check refuses agents that are asked for and that there is no image for.
func (c *AgentConfig) Check() error {
	if c.None || c.Spec.Agents != v1alpha1.AgentsEnabled || c.Runs() {
		return nil
	}
	return &spec.Error{
		Field: "spec.image", Problem: "is empty, and this build of replumb knows of no image of its own",
		Hint: "name an image that nodes can pull, or set spec.proof.agents: Disabled",
	}
}

// Wait is how long an agent may take to report.
func (c *AgentConfig) Wait() time.Duration {
	if w := c.Spec.Wait; w != nil {
		return w.Duration
	}
	return agentset.DefaultWait
}

func (c *AgentConfig) Observe(o Observer) { c.observer = o }

func (c *AgentConfig) Found(all findings.Findings) {
	if c.observer != nil {
		c.observer.Findings(all)
	}
}

// Keep has the next run watched, if there are agents. A lenient one is never stopped.
func (c *AgentConfig) Keep(k *migration.Keeper, lenient bool) *migration.Keeper {
	if !c.Runs() || c.Cluster == nil {
		return k
	}
	w := c.follower()
	w.Migration, w.Budget, w.Patience, w.Now, w.Lenient = c.Migration, c.Spec.Budget, c.Wait(), c.Now, lenient
	w.LateBudget, w.Observer, w.Status = c.Spec.LateBudget, c.observer, k.Status
	k.Guard = w
	return k
}

func (c *AgentConfig) Blame(ctx context.Context, loss *LossError) error {
	if c.watch == nil {
		return loss
	}
	return c.watch.Blame(ctx, loss)
}

// follower is the same for all runs and all plans.
func (c *AgentConfig) follower() *Watch {
	if c.watch == nil && c.Cluster != nil {
		c.watch = &Watch{Client: c.Cluster}
	}
	return c.watch
}

// New makes the agents for a cluster of so many nodes; nil if there are to be none.
func (c *AgentConfig) New(nodes int) *Agents {
	if !c.Runs() {
		return nil
	}
	p := &Agents{Watch: c.follower(), Set: &agentset.Set{
		Cluster: c.Cluster, Migration: c.Migration, Services: c.Services, Image: c.Image(), Wait: c.Wait(), Now: c.Now,
		Interval: interval(nodes),
	}}
	if p.Watch != nil {
		p.Watch.Diagnose(p)
	}
	return p
}

// Left removes at the end what an earlier run left of agents, if there are none now.
func (c *AgentConfig) Left(ctx context.Context) ([]engine.Group, error) {
	if c.Runs() {
		return nil, nil
	}
	set := &agentset.Set{Cluster: c.Cluster, Migration: c.Migration, Services: c.Services, Now: c.Now}
	there, err := set.There(ctx)
	if err != nil || !there {
		return nil, err
	}
	return engine.InOrder(set.Remove()...), nil
}

// interval has all agents together send about twenty reports a second, in steps.
func interval(nodes int) time.Duration {
	every := 2 * time.Second
	for every < time.Duration(nodes)*time.Second/10 {
		every *= 2
	}
	return every
}

// Agents is agents and who follows them. A nil one has no steps.
type Agents struct {
	*agentset.Set
	// Watch is nil where there is no cluster.
	Watch *Watch
}

// Install puts agents on every node, and sees that all is well before anything is changed.
func (p *Agents) Install() []engine.Group {
	if p == nil {
		return nil
	}
	return append(p.Set.Install(), p.Steady("")...)
}

// InstallIfPossible does so on the way back, and gives up after a while.
func (p *Agents) InstallIfPossible() []engine.Group { return p.BestEffort(p.Install()) }

// BestEffort has steps that wait give up after a while, and not fail.
func (p *Agents) BestEffort(groups []engine.Group) []engine.Group {
	for _, g := range groups {
		for i, s := range g.Steps {
			if _, ok := s.(engine.Waiter); ok {
				g.Steps[i] = &bestEffortStep{Step: s, limit: min(patience, p.Wait), now: p.Now}
			}
		}
	}
	return groups
}

// Try asks whether agents, and more of a migration's own, may be made.
func (p *Agents) Try(ctx context.Context, s *migration.Subject, c *cluster.Cluster, more ...client.Object) (findings.Findings, error) {
	own := migration.Own{Objects: more}
	if p != nil {
		all, err := p.Objects()
		if err != nil {
			return nil, err
		}
		own.Objects, own.Privileged = slices.Concat(all, more), true
	}
	return s.TryOwn(ctx, c, own)
}

// Steady waits until every probe is answered from every node again, after something that is named.
func (p *Agents) Steady(after string) []engine.Group {
	if p == nil {
		return nil
	}
	return engine.InOrder(&Steady{Watch: p.Watch, Name: after, Limit: p.Wait})
}

func (p *Agents) Dismiss() []engine.Group {
	if p == nil {
		return nil
	}
	return engine.InOrder(append([]engine.Step{&Dismiss{Watch: p.Watch}}, p.Remove()...)...)
}

// patience is how long the way back waits for agents at most.
const patience = 30 * time.Second

// bestEffortStep gives up waiting after a while, and says what is missing.
type bestEffortStep struct {
	engine.Step
	limit time.Duration
	now   func() time.Time
	until time.Time
	note  string
}

var (
	_ engine.Waiter = (*bestEffortStep)(nil)
	_ engine.Timed  = (*bestEffortStep)(nil)
	_ engine.Noter  = (*bestEffortStep)(nil)
)

func (*bestEffortStep) Waits() {}

func (s *bestEffortStep) Deadline() time.Duration { return s.limit + time.Minute }

func (s *bestEffortStep) Note() string {
	if n, ok := s.Step.(engine.Noter); ok && s.note == "" {
		return n.Note()
	}
	return s.note
}

func (s *bestEffortStep) Verify(ctx context.Context) error {
	now := time.Now
	if s.now != nil {
		now = s.now
	}
	if s.until.IsZero() {
		s.until = now().Add(s.limit)
	}
	err := s.Step.Verify(ctx)
	if err == nil || !engine.Retryable(err) || now().Before(s.until) {
		return err
	}
	s.note = "rolling back without agents: " + err.Error()
	return nil
}
