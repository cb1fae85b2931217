package kubeproxy

import (
	"context"
	"errors"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job changes the mode of one cluster's kube-proxy.
type Job struct {
	*migration.Job[*Planner]
	migration.Subject
	lossguard.Watched

	Tools migration.Deps
	Spec  Spec
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools migration.Deps, m *v1alpha1.Migration) (*Job, error) {
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

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools, j.Spec.Name, &j.Spec.Common)
}

// image is what runs on nodes, with agents or without.
func (j *Job) image() pull.Image {
	return j.Tools.ImageOf(&j.Spec.Common)
}

// Adopt takes over what is recorded, and refuses a different job under the same name.
func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

// Turn fails if there is nothing that keeps rules on nodes, before anything begins.
func (j *Job) Turn(context.Context, *v1alpha1.Migration, v1alpha1.DesiredState) error {
	if j.image().Name != "" {
		return nil
	}
	return &spec.Error{
		Field: "spec.image", Problem: "is empty, and this build of replumb has no image of its own",
		Hint: "name an image of replumb that the nodes can pull",
	}
}

// AnotherRound has nodes that joined on the way changed, too.
func (*Job) AnotherRound(_ context.Context, err error) bool {
	return errors.As(err, new(*UnchangedNodeError))
}

func (j *Job) inventory(ctx context.Context) (*Inventory, error) {
	return Load(ctx, j.Tools.Cluster, j.Spec, j.Migration.Status.KubeProxy)
}

// Examine looks at the cluster. Nothing is written.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook); err != nil {
		return nil, err
	}
	s, err := j.inventory(ctx)
	if err != nil {
		return nil, err
	}
	p := &Planner{Inventory: s, Image: j.image()}
	if p.Base, err = j.Base(ctx, j.Tools); err != nil {
		return nil, err
	}
	p.Agents = j.agents().New(len(s.Nodes))
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	in := Input{Inventory: s, Access: j.Access, Image: p.Image.Name, Agents: j.agents().Image().Name}
	if in.Others, err = migration.List(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	if in.AbsentSecrets, err = p.Image.Needed(ctx, j.Tools.Cluster, ""); err != nil {
		return nil, err
	}
	found, err := p.Agents.Try(ctx, &j.Subject, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	p.Findings = slices.Concat(findings.Run(Checks(), in), p.Findings, found)
	return p, nil
}
