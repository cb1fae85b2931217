package migrate

import (
	"context"
	"io"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// job is a migration of one kind as commands see it.
type job interface {
	about() about
	// restrict bounds apply to phases up to one, empty for all, and to a plan, nil for any.
	restrict(until string, expected *migration.Expectation)
	// examine looks at the cluster. Nothing is written.
	examine(context.Context) (outlook, error)
	apply(context.Context, *engine.Runner) (arrival, error)
	// finishable says what finish would make final, or why it is too early.
	finishable(context.Context) (prospect, error)
	// status reads where everything stands from the objects themselves.
	status(context.Context) (page, error)
	// Roles are what users need for this Migration in its cluster, by purpose.
	Roles(context.Context) (cluster.Roles, error)
	Rollback(context.Context, *engine.Runner) error
	Finish(context.Context, *engine.Runner) error
	Pause(context.Context) error
	Resume(context.Context) error
}

// about is what is true of a job before the cluster is looked at.
type about struct {
	name      string
	migration *v1alpha1.Migration
	// common is what all kinds have, defaulted.
	common v1alpha1.MigrationSpec
	// phases of apply, in order.
	phases []string
	// goBack is the question before a rollback; the others say what holds after a command.
	goBack, applied, wentBack, finished string
	// rights is the file with the roles that the user needs.
	rights string
}

// outlook is what a look at the cluster found.
type outlook struct {
	findings findings.Findings
	// whole is the plan of apply, outstanding what is left of it.
	whole, outstanding *engine.Plan
	// stays are the objects left alone, details what follows the phases, for people.
	stays []stayLine
	// services are how each fares, in a migration that moves Services.
	services []servicecidr.Line
	details  func(io.Writer) error
	// late are Services made in the target range, for which a rollback needs a choice.
	late []servicecidr.Late
	// summary is one line, without the plan's hash.
	summary string
}

// arrival says where apply got to, and hints at the next command unless it stopped on the way.
type arrival struct {
	tell func(io.Writer)
	hint string
}

// prospect of finish: the question, and what becomes final, a line each.
type prospect struct {
	question string
	finals   []string
}

// page is the status of a migration: a document with the head inline, and a table for people.
type page interface {
	headOf() *statusHead
	// table writes no more than so many rows, or lines of a kind; zero writes all.
	table(w io.Writer, rows int) error
}

// newJob makes the job of a Migration. Without a cluster it is good for its errors alone.
func (o *source) newJob(c *command.Connection, m *v1alpha1.Migration, dir string) (job, error) {
	tools := o.Tools(c)
	tools.InsecureTarget, tools.Dir = o.insecureTarget, dir
	switch {
	case m.Spec.ServiceCIDR != nil:
	case m.Spec.PodCIDR != nil:
		j, err := podcidr.NewJob(tools.Basic(), m)
		return podJob{j, o.Name}, err
	case m.Spec.Nodes != nil:
		j, err := nodes.NewJob(tools.Basic(), m)
		return nodeJob{j, o.Name}, err
	case m.Spec.Mirror != nil:
		j, err := mirror.NewJob(tools.Mirrors(), m)
		return mirrorJob{j, o.Name}, err
	case m.Spec.CNI != nil:
		return o.newCNIJob(tools, m)
	}
	j, err := servicecidr.NewJob(tools.Services(), m)
	return serviceJob{j, o.Name}, err
}

func ofJob(j job, err error) error { return command.WithRights(err, j.about().rights) }

// silentJob calls nothing that its Migration names.
func (o *source) silentJob(c *command.Connection, m *v1alpha1.Migration) (job, error) {
	j, err := o.newJob(c, m, "")
	switch j := j.(type) {
	case serviceJob:
		if j.Job != nil {
			j.Silent = true
		}
	case mirrorJob:
		if j.Job != nil {
			j.Silent = true
		}
	}
	return j, err
}
