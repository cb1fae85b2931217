// Package migrations lists the kinds of migrations. No kind knows another.
package migrations

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/kubeproxy"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job is a migration of any kind.
type Job interface {
	About() migration.About
	// Roles are what users need for this Migration in its cluster, by purpose.
	Roles(ctx context.Context) (access.Roles, error)
	Open(ctx context.Context) error
	Silence()
	Restrict(until string, expected *migration.Expectation)
	Inspect(ctx context.Context) (migration.Inspection, error)
	// Status reads where everything stands from the objects themselves.
	Status(ctx context.Context) (migration.StatusDocument, error)
	RunApply(ctx context.Context, r *engine.Runner) (migration.ApplyResult, error)
	Rollback(ctx context.Context, r *engine.Runner) error
	FinishPreview(ctx context.Context) (migration.FinishPreview, error)
	Finish(ctx context.Context, r *engine.Runner) error
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Observe has an observer follow what agents see while runs go on.
	Observe(o lossguard.Observer)
	OnMove(tell func(migration.Move))
	// Blame returns the error that a run ends with which was stopped by a loss.
	Blame(ctx context.Context, loss *lossguard.LossError) error
}

// Kind is one line of the table.
type Kind struct {
	migration.Description
	NewJob func(t Deps, m *v1alpha1.Migration) (Job, error)
}

// Kinds is the table of kinds, in the order in which people read of them.
type Kinds []Kind

// All lists the kinds.
func All() Kinds {
	return Kinds{
		{servicecidr.Kind(), func(t Deps, m *v1alpha1.Migration) (Job, error) { return made(servicecidr.NewJob(t.Services(), m)) }},
		{podcidr.Kind(), func(t Deps, m *v1alpha1.Migration) (Job, error) { return made(podcidr.NewJob(t.Basic(), m)) }},
		{nodes.Kind(), func(t Deps, m *v1alpha1.Migration) (Job, error) { return made(nodes.NewJob(t.Basic(), m)) }},
		{mirror.Kind(), func(t Deps, m *v1alpha1.Migration) (Job, error) { return made(mirror.NewJob(t.Mirrors(), m)) }},
		{cni.Kind(), newNetworkJob},
		{kubeproxy.Kind(), func(t Deps, m *v1alpha1.Migration) (Job, error) { return made(kubeproxy.NewJob(t.Basic(), m)) }},
	}
}

// made is a job, and no nil pointer in an interface, if there is none.
func made[J Job](j J, err error) (Job, error) {
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Of is the kind of a Migration: of none, if it names no job. Then it has no words.
func (all Kinds) Of(m *v1alpha1.Migration) Kind {
	if i := slices.IndexFunc(all, func(k Kind) bool { return k.Field == m.Spec.Type() }); i >= 0 {
		return all[i]
	}
	return Kind{}
}

// Fields are the fields of spec that name the kinds.
func (all Kinds) Fields() (fields []string) {
	for _, k := range all {
		fields = append(fields, k.Field)
	}
	return fields
}

// Describe is Of for those who make no jobs.
func (all Kinds) Describe(m *v1alpha1.Migration) migration.Description { return all.Of(m).Description }

// NewJob makes the job of a Migration, and says what is wrong in it.
func (all Kinds) NewJob(t Deps, m *v1alpha1.Migration) (Job, error) {
	kind := all.Of(m)
	if kind.NewJob == nil {
		return nil, all.refuse(m)
	}
	return kind.NewJob(t, m)
}

// refuse says all that is wrong in a Migration that names no job.
func (all Kinds) refuse(m *v1alpha1.Migration) error {
	m = m.DeepCopy()
	spec.Default(m)
	var phases []string
	for _, k := range all {
		phases = append(phases, k.Phases...)
	}
	return cmp.Or(spec.Refuse(spec.Validate(m, phases)), fmt.Errorf("migration %s names no job", m.Name))
}

// Shared are the checks and roles of what every kind can be asked for. It is no kind.
func Shared() Kind {
	return Kind{Description: migration.Description{
		Title: "All kinds",
		Checks: slices.Concat(findings.Describe(offline.Checks()), findings.Describe(migration.DeploymentChecks()),
			findings.Describe(migration.NamespaceChecks()), findings.Describe(migration.OwnChecks())),
		Command: "freeze",
		Does:    "keeps others from deploying (spec.deploymentFreeze), beside those of a kind",
		Roles:   migration.DeploymentRoles(),
	}}
}
