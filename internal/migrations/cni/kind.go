package cni

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster *cluster.Cluster
	// Any is a client for objects of all kinds.
	Any client.Client
	// Image of replumb for the pods it runs itself.
	Image string
	Now   func() time.Time
}

// client is nil, and not a nil pointer in an interface, when there is no cluster.
func (t Tools) client() client.Client {
	if t.Cluster == nil {
		return nil
	}
	return t.Cluster
}

// Job replaces the network of one cluster.
type Job struct {
	*migration.Job[*Planner]

	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec
	// AcceptDowntime says, for this run, that whoever is served may be cut off.
	AcceptDowntime bool

	recorded *v1alpha1.Migration
	changes  []spec.Change
	access   []cluster.AccessAnswer
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
	j := &Job{Tools: tools, Migration: m, Spec: s}
	j.Job = &migration.Job[*Planner]{Kind: j, Client: tools.client(), Name: s.Name, Now: tools.Now}
	return j, nil
}

// Adopt implements migration.Kind. A different job under the same name is refused.
func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if have == nil {
		return nil
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if j.Migration, j.changes, err = spec.Merge(whole, j.Migration); err != nil {
		return err
	}
	if j.Spec, err = Validate(j.Migration); err != nil {
		return err
	}
	j.recorded, j.Migration.Status = have, have.Status
	return nil
}

// Survey looks at the cluster as it is now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) { return j.Tools.look(ctx, j.Spec) }

// Examine implements migration.Kind.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	survey, err := j.Survey(ctx)
	if err != nil {
		return nil, err
	}
	if j.AcceptDowntime {
		survey.Spec.Quiet = false
	}
	p := &Planner{Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(), Recorded: j.recorded != nil, Changes: j.changes}
	if p.image() == "" {
		return nil, &spec.Error{
			Field: root + ".canary.image", Problem: "is empty, and this build of replumb has no image of its own",
			Hint: "name an image of replumb that the nodes can pull: what cleans nodes needs it, with mode: Disabled too",
		}
	}
	crd, err := j.Tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return nil, err
	}
	p.HasCRD = crd != nil
	in := Input{Survey: survey, Access: j.access}
	if in.Others, err = migration.List(ctx, j.Tools.Cluster); err != nil {
		return nil, err
	}
	p.Findings = findings.Run(Checks(), in)
	return p, nil
}

// Found implements migration.Plans.
func (p *Planner) Found() findings.Findings { return p.Findings }

// Counts implements migration.Plans.
func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

// Left implements migration.Plans.
func (p *Planner) Left() string { return p.Survey.Left() }

// Early implements migration.Plans.
func (p *Planner) Early() string { return p.Left() }
