package migrations

import (
	"context"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// Tools are what jobs of all kinds are made with. Without a cluster they are good for finding out what is wrong in a Migration.
type Tools struct {
	Cluster   *cluster.Cluster
	Inspector *apiserver.Inspector
	// Image of replumb for the pods it runs itself; empty if this build has none.
	Image pull.Image
	// Context gives access to another context of the kubeconfig, for mirrors; nil where there is no kubeconfig.
	Context func(name string) (*rest.Config, error)
	// InsecureTarget takes the kubeconfig of a mirror's Secret as it is.
	InsecureTarget bool
	// Dir is the folder that relative paths of manifests are relative to.
	Dir string
	// Directed says that spec.desired is for others to write, and that runs obey it: they are those of the operator.
	Directed bool
}

// Basic are what every kind needs.
func (t Tools) Basic() migration.Tools {
	return migration.Tools{Cluster: t.Cluster, Image: t.Image, Directed: t.Directed}
}

// Services are for migrations of Services.
func (t Tools) Services() servicecidr.Deps {
	tools := servicecidr.Deps{Tools: t.Basic()}
	if t.Cluster != nil {
		tools.Probe, tools.Inspector = servicecidr.HealthPort{Cluster: t.Cluster}, t.Inspector
	}
	return tools
}

// Mirrors are for mirrors.
func (t Tools) Mirrors() mirror.Deps {
	return mirror.Deps{Tools: t.Basic(), Context: t.Context, InsecureTarget: t.InsecureTarget}
}

// Networks are for migrations of networks.
func (t Tools) Networks() (cni.Deps, error) {
	tools := cni.Deps{Tools: t.Basic(), Dir: t.Dir}
	if t.Cluster == nil {
		return tools, nil
	}
	everything, err := t.Cluster.Any()
	tools.Any = everything
	return tools, err
}

// Job is a migration of any kind, to those who need no more of it than that it runs.
type Job interface {
	// Common is what all kinds have, defaulted.
	Common() v1alpha1.MigrationSpec
	// Outlook looks at the cluster and makes the plan of apply. Nothing is written.
	Outlook(ctx context.Context) (migration.Plans, error)
	Apply(ctx context.Context, r *engine.Runner) error
	Rollback(ctx context.Context, r *engine.Runner) error
	Finish(ctx context.Context, r *engine.Runner) error
	// Expect has apply refuse to do more than a plan says.
	Expect(plan *migration.Expectation)
	// Kind is the job of the kind itself, for those who ask what else it can do.
	Kind() any
}

// NewJob makes the job of a Migration, and says what is wrong in it.
func NewJob(t Tools, m *v1alpha1.Migration) (Job, error) {
	switch {
	case m.Spec.ServiceCIDR != nil:
		j, err := servicecidr.NewJob(t.Services(), m)
		if err != nil {
			return nil, err
		}
		return of[*servicecidr.Planner](j, j.Spec.Common), nil
	case m.Spec.PodCIDR != nil:
		j, err := podcidr.NewJob(t.Basic(), m)
		if err != nil {
			return nil, err
		}
		return of[podcidr.Plans](j, j.Spec.Common), nil
	case m.Spec.Nodes != nil:
		j, err := nodes.NewJob(t.Basic(), m)
		if err != nil {
			return nil, err
		}
		return of[*nodes.Planner](j, j.Spec.Common), nil
	case m.Spec.Mirror != nil:
		j, err := mirror.NewJob(t.Mirrors(), m)
		if err != nil {
			return nil, err
		}
		return of[*mirror.Planner](j, j.Spec.Common), nil
	case m.Spec.CNI != nil:
		return newNetworkJob(t, m)
	}
	return nil, fmt.Errorf("migration %s names no job", m.Name)
}

func newNetworkJob(t Tools, m *v1alpha1.Migration) (Job, error) {
	tools, err := t.Networks()
	if err != nil {
		return nil, err
	}
	j, err := cni.NewJob(tools, m)
	if err != nil {
		return nil, err
	}
	return of[cni.Plans](j, j.Spec.Common), nil
}

// kindOf is the job of one kind, whose plans are P.
type kindOf[P migration.Plans] interface {
	Look(ctx context.Context) (P, error)
	Apply(ctx context.Context, r *engine.Runner) (P, error)
	Rollback(ctx context.Context, r *engine.Runner) error
	Finish(ctx context.Context, r *engine.Runner) error
	Expect(plan *migration.Expectation)
}

// kindJob is a job of one kind as a Job.
type kindJob[P migration.Plans] struct {
	kindOf[P]
	common v1alpha1.MigrationSpec
}

func of[P migration.Plans](j kindOf[P], common v1alpha1.MigrationSpec) Job {
	return kindJob[P]{j, common}
}

func (j kindJob[P]) Common() v1alpha1.MigrationSpec { return j.common }

func (j kindJob[P]) Kind() any { return j.kindOf }

func (j kindJob[P]) Outlook(ctx context.Context) (migration.Plans, error) {
	if o, ok := j.kindOf.(opener); ok {
		if err := o.Open(ctx); err != nil {
			return nil, err
		}
	}
	return j.Look(ctx)
}

func (j kindJob[P]) Apply(ctx context.Context, r *engine.Runner) error {
	_, err := j.kindOf.Apply(ctx, r)
	return err
}

// opener is a job that can tell before it begins that it must not.
type opener interface {
	Open(ctx context.Context) error
}
