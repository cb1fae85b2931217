package cni

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Tools are what steps work with.
type Tools struct {
	migration.Tools
	// Any is a client for objects of all kinds.
	Any client.Client
	// Dir is the folder that relative paths of manifests are relative to. Default: the one that replumb runs in.
	Dir string
}

// Job replaces the network of one cluster.
type Job struct {
	*migration.Job[*Planner]
	migration.Subject

	Tools Tools
	Spec  Spec
	// AcceptDowntime says, for this run, that connections of clients may be cut.
	AcceptDowntime bool

	agentConfig lossguard.AgentConfig
}

var (
	_ migration.Kind[*Planner] = (*Job)(nil)
	_ migration.Plans          = (*Planner)(nil)
)

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Subject: migration.Subject{Migration: m}, Spec: s}
	j.Job = &migration.Job[*Planner]{
		Kind: j, Client: tools.Client(), Name: s.Name, Guard: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	return j, j.agents().Check()
}

// agents are those that watch the migration, while the cluster serves.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Cluster, c.Migration, c.Spec, c.Own, c.Now = j.Tools.Cluster, j.Spec.Name, j.Spec.Common.Proof, j.Tools.Image, j.Tools.Now
	c.None = !j.Spec.Serving // without a network for pods there is nothing to see
	return c
}

// Observe has an observer follow what happens while runs go on.
func (j *Job) Observe(o lossguard.Observer) { j.agentConfig.Observe(o) }

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// newAgents makes the agents of a job. Their pods move like all others.
func (j *Job) newAgents(s *Survey) *lossguard.Agents {
	a := j.agents().New(len(s.Nodes))
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

// AnotherRound implements migration.Kind: nodes that joined on the way are switched, too.
func (*Job) AnotherRound(_ context.Context, err error) bool { return errors.As(err, new(*JoinedError)) }

// Survey looks at the cluster as it is now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) { return j.Tools.look(ctx, j.Spec) }

func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook); err != nil {
		return nil, err
	}
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	if j.AcceptDowntime {
		survey.Spec.Quiet = false
	}
	base, err := j.Base(ctx, j.Tools.Tools)
	if err != nil {
		return nil, err
	}
	survey.Frozen = survey.Frozen || base.Freezes() // before its first step, by the plan
	p := &Planner{Base: base, Tools: j.Tools, Survey: survey, Agents: j.newAgents(survey)}
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	if p.image().Name == "" {
		return nil, &spec.Error{
			Field: root + ".canary.image", Problem: "is empty, and this build of replumb has no image of its own",
			Hint: "name an image of replumb that the nodes can pull: what cleans nodes needs it, with mode: Disabled too",
		}
	}
	in := Input{Survey: survey, Access: j.Access, Image: p.image().Name}
	if in.Others, err = migration.List(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	if in.AbsentSecrets, err = p.absentSecrets(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	forAgents, err := j.agents().AbsentSecrets(ctx, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	in.AbsentSecrets = append(in.AbsentSecrets, forAgents...)
	p.Findings = append(findings.Run(Checks(), in), p.Findings...)
	return p, nil
}

// absentSecrets finds the pull secrets that are not there of pods on nodes and of canaries.
func (p *Planner) absentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	return p.image().Absent(ctx, in, root+".canary.imagePullSecrets")
}

func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

func (p *Planner) Left() string { return p.Survey.Left() }

func (p *Planner) Early() string { return p.Left() }
