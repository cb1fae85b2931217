package cni

import (
	"context"
	"errors"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/inplace"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

type (
	// Deps are what steps work with.
	Deps = switchover.Deps
	// Strategy is one way to replace the network of a cluster that was looked at.
	Strategy = switchover.Strategy
	// Plans are the plans of one look at the cluster.
	Plans = switchover.Plans
)

// Job replaces the network of one cluster.
type Job struct {
	*migration.Job[Plans]
	migration.Subject

	Deps Deps
	Spec Spec
	// AcceptDowntime says, for this run, that connections of clients may be cut.
	AcceptDowntime bool

	agentConfig lossguard.AgentConfig
}

var _ migration.Kind[Plans] = (*Job)(nil)

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(deps Deps, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Deps: deps, Subject: migration.Subject{Migration: m}, Spec: s}
	j.Job = &migration.Job[Plans]{
		Kind: j, Client: deps.Client(), Name: s.Name, Guard: j.agents(), Now: deps.Now, Directed: deps.Directed,
	}
	return j, j.agents().Check()
}

// agents are those that watch the migration, while the cluster serves: without a network for pods
// there is nothing to see.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Bring(j.Deps.Deps, j.Spec.Name, &j.Spec.Common)
	c.None = !modeOf(j.Spec).serves
	return c
}

func (j *Job) Observe(o lossguard.Observer) { j.agentConfig.Observe(o) }

func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// newAgents makes the agents of a job. Their pods move like all others.
func (j *Job) newAgents(nodes int) *lossguard.Agents {
	a := j.agents().New(nodes)
	if a != nil {
		a.Roll = true
	}
	return a
}

func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

// Turn fails if there is nothing that cleans nodes, since one that has begun must not be left half
// way. Before it begins, a check says so.
func (j *Job) Turn(context.Context, *v1alpha1.Migration, v1alpha1.DesiredState) error {
	if j.Deps.ImageOf(&j.Spec.Common).Name != "" {
		return nil
	}
	return &spec.Error{
		Field: "spec.image", Problem: "is empty, and this build of replumb has no image of its own",
		Hint: "name an image of replumb that the nodes can pull",
	}
}

// AnotherRound has nodes that joined on the way switched, too.
func (*Job) AnotherRound(_ context.Context, err error) bool {
	return errors.As(err, new(*inplace.JoinedError))
}

func (j *Job) Load(ctx context.Context) (Strategy, error) {
	s := j.Spec
	s.Quiet = s.Quiet && !j.AcceptDowntime
	inventory, err := j.Deps.Load(ctx, s)
	if err != nil {
		return nil, err
	}
	return modeOf(s).load(ctx, j.Deps, inventory)
}

func (j *Job) Examine(ctx context.Context) (Plans, error) {
	if err := j.Authorize(ctx, j.Deps.Cluster, j.roles(), toLook); err != nil {
		return nil, err
	}
	strategy, err := j.Load(ctx)
	if err != nil {
		return nil, err
	}
	base, err := j.Base(ctx, j.Deps.Deps)
	if err != nil {
		return nil, err
	}
	inventory := strategy.Shared()
	p := &switchover.Planner{
		Base: base, Deps: j.Deps, Inventory: inventory, Strategy: strategy, Agents: j.newAgents(len(inventory.Nodes)),
	}
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	in := switchover.Input{Strategy: strategy, Inventory: inventory, Access: j.Access, Image: p.Image().Name}
	if in.Others, err = migration.List(ctx, j.Deps.Cluster); err != nil {
		return nil, err
	}
	if in.AbsentSecrets, err = p.AbsentSecrets(ctx, j.Deps.Cluster); err != nil {
		return nil, err
	}
	found, err := p.Agents.Try(ctx, &j.Subject, j.Deps.Cluster)
	if err != nil {
		return nil, err
	}
	p.Findings = slices.Concat(findings.Run(Checks(), in), p.Findings, found)
	return strategy.Plans(p), nil
}
