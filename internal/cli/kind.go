package cli

import (
	"context"
	"fmt"

	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
)

// newJob makes the job of a Migration. Without a cluster it only tells what is wrong in the Migration.
func (a *app) newJob(c *connection, m *v1alpha1.Migration) (migrations.Job, error) {
	j, err := a.kinds.NewJob(a.tools(c), m)
	if network, ok := j.(*cni.Job); ok {
		network.AcceptDowntime = a.acceptDowntime
	}
	return j, err
}

// connection to a cluster, with what kinds of migrations need of it. A nil one is none.
type connection struct {
	*cluster.Cluster
	inspector *apiserver.Inspector
	// snapshot answers in place of the cluster; nil, if that does.
	snapshot *offline.Server
}

// identity is the cluster's, as far as the user may ask for it.
func (c *connection) identity(ctx context.Context) engine.Identity {
	of, err := c.Identity(ctx)
	if err != nil {
		return c.Known()
	}
	return of
}

// tools are what jobs are made with. A nil connection is none.
func (a *app) tools(c *connection) migrations.Tools {
	t := migrations.Tools{Image: pull.Image{Name: image()}, Context: a.context, InsecureTarget: a.insecureTarget, Dir: a.dir}
	if c != nil {
		t.Cluster, t.Inspector = c.Cluster, c.inspector
	}
	return t
}

// connect to the cluster that the flags name, or to a snapshot of one.
func (a *app) connect() (*connection, error) {
	if a.from != "" {
		return a.connectTo(a.from)
	}
	return a.connectBy(a.config)
}

func noCluster(err error) error {
	return &fault.Hinted{Err: fmt.Errorf("no cluster: %w", err), Hint: "name one with --kubeconfig or --context"}
}

// connectBy connects to the cluster that some flags name.
func (a *app) connectBy(flags *genericclioptions.ConfigFlags) (*connection, error) {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, noCluster(err)
	}
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, err
	}
	c.ContextName = contextOf(flags)
	if config.Insecure {
		fmt.Fprintln(a.err, "warning: the kubeconfig has no certificates verified (insecure-skip-tls-verify): "+
			"who answers in the API server's place gets these credentials; single API servers get none, so their flags are not known")
	}
	return &connection{Cluster: c, inspector: apiserver.New(config)}, nil
}

// contextOf is the name of the context that some flags name; empty if there is none, as in a pod.
func contextOf(flags *genericclioptions.ConfigFlags) string {
	if flags.Context != nil && *flags.Context != "" {
		return *flags.Context
	}
	kubeconfig, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil { // that it is there was seen when it was connected to
		return ""
	}
	return kubeconfig.CurrentContext
}

// reach connects, and sees that someone answers.
func (a *app) reach(ctx context.Context) (*connection, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	_, err = c.ServerVersion(ctx)
	return c, err
}

// fit says whether a Migration fits the command line, or the machine.
type fit func(m *v1alpha1.Migration, j migrations.Job) error

// jobFromFile reads the Migration, and sees that it fits the flags, before it looks for a cluster: what is wrong in the file
// or on the command line is reported first.
func (a *app) jobFromFile(ctx context.Context, fits ...fit) (migrations.Job, *connection, error) {
	m, j, err := a.given()
	if err != nil {
		return nil, nil, err
	}
	if err := a.fitsSnapshot(m); err != nil {
		return nil, nil, err
	}
	for _, fit := range fits {
		if err := fit(m, j); err != nil {
			return nil, nil, err
		}
	}
	c, err := a.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	j, err = a.newJob(c, m)
	return j, c, err
}

// recorded is the Migration that the cluster has.
func (a *app) recorded(ctx context.Context, name string) (*v1alpha1.Migration, *connection, error) {
	c, err := a.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := migration.Get(ctx, c.Cluster, name)
	if err != nil {
		return nil, nil, err
	}
	if m == nil {
		return nil, nil, noMigration(name)
	}
	return m, c, nil
}

// absentError says that a cluster has no migration of a name.
type absentError struct{ name string }

func (e *absentError) Error() string { return "migration " + e.name + " does not exist" }

func (*absentError) Advice() string { return "kubectl get migrations.replumb.dev lists them" }

func noMigration(name string) error { return &absentError{name} }

// lookingJob is a job of the Migration that the cluster has, for looking alone: it calls nothing that stands in there.
func (a *app) lookingJob(ctx context.Context, name string) (migrations.Job, *connection, error) {
	m, c, err := a.recorded(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	j, err := a.silentJob(c, m)
	return j, c, err
}

// silentJob calls nothing that its Migration names.
func (a *app) silentJob(c *connection, m *v1alpha1.Migration) (migrations.Job, error) {
	j, err := a.newJob(c, m)
	if err == nil {
		j.Silence()
	}
	return j, err
}
