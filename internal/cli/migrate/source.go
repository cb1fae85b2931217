package migrate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/cni"
	"github.com/replumb/replumb/internal/migrations/mirror"
	"github.com/replumb/replumb/internal/spec"
)

// source is where the Migrations of a command are, and what its flags change in them.
type source struct {
	*command.App
	files command.InputFiles
	from  string
	// passEnv are variables that programs get beside those that all get.
	passEnv        []string
	insecureTarget bool
	acceptDowntime bool
	withoutAgent   bool
	withoutTarget  bool
}

func (o *source) declareFiles(cmd *cobra.Command) {
	o.files.Declare(cmd)
	cmd.Flags().StringArrayVar(&o.passEnv, "pass-env", nil,
		"name of an environment variable that programs of the file get, beside those that all get (docs/hooks.md)")
	cmd.Flags().BoolVar(&o.insecureTarget, "insecure-target-kubeconfig", false,
		"take the kubeconfig in the Secret of spec.mirror.target as it is: it may run programs and read files on this machine")
}

func (o *source) declareWithoutTarget(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.withoutTarget, "without-target", false,
		"lead names back without asking the mirror, which is gone: see that nothing runs there (spec.mirror)")
}

func (o *source) declareFrom(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.from, "from", "", "snapshot to read in place of the cluster, a file of the command snapshot")
}

func (o *source) declareWithoutAgent(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.withoutAgent, "without-agent", false,
		"run no agents on the nodes: nothing is probed, and barriers of Services go by what kube-proxies say (spec.proof.agents: Disabled)")
}

type given struct {
	*v1alpha1.Migration
	dir string
	job migrations.Job
}

func (o *source) check(g spec.Given, several bool) (*given, error) {
	m := g.Migration
	if m == nil {
		return nil, g.Err
	}
	spec.PassEnv(m, o.passEnv)
	if o.withoutAgent {
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled
	}
	j, err := o.newJob(nil, m, g.Source.Dir)
	if several {
		err = spec.About(m.Name, err)
	}
	if err := spec.Join(g.Err, err); err != nil {
		return nil, err
	}
	return &given{Migration: m, dir: g.Source.Dir, job: j}, nil
}

func (o *source) one(name string) (*given, error) {
	sources, err := o.files.Sources(o.App)
	if err != nil {
		return nil, err
	}
	m, from, err := spec.ReadFrom(sources...)
	g, err := o.check(spec.Given{Migration: m, Source: from, Err: err}, false)
	if err != nil {
		return nil, err
	}
	return g, g.called(name)
}

func (g *given) called(name string) error {
	if name == "" || name == g.Name {
		return nil
	}
	return &command.UsageError{
		Problem: fmt.Sprintf("the file is about migration %s, and not about %s", g.Name, name),
		Hint:    "leave the name out, or the file",
	}
}

func (o *source) fromFiles(f command.Format, args []string) (*given, *set, error) {
	if !o.files.Given() {
		return nil, nil, nil
	}
	return o.chosen(f, nameIn(args))
}

func (o *source) nameOrFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && o.files.Given() {
		return nil
	}
	return command.OneName(cmd, args)
}

func nameIn(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	return ""
}

type fit func(g *given) error

func (o *source) open(ctx context.Context, g *given, fits ...fit) (migrations.Job, *command.Connection, error) {
	if o.from != "" && g.Spec.Mirror != nil {
		return nil, nil, &command.UsageError{
			Problem: "a mirror is of two clusters, and a snapshot is of one", Hint: "leave --from out: check and plan write nothing",
		}
	}
	for _, fit := range fits {
		if err := fit(g); err != nil {
			return nil, nil, err
		}
	}
	c, err := o.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	j, err := o.newJob(c, g.Migration, g.dir)
	return j, c, err
}

func (o *source) reach(ctx context.Context) (*command.Connection, error) {
	if o.from == "" {
		return o.Reach(ctx)
	}
	c, err := o.OpenSnapshot(o.from)
	if err != nil {
		return nil, err
	}
	_, err = c.ServerVersion(ctx)
	return c, err
}

// examined inspects the cluster, or a snapshot, whose own findings come first.
func (o *source) examined(ctx context.Context, c *command.Connection, j migrations.Job) (migration.Inspection, error) {
	look, err := j.Inspect(ctx)
	if err != nil || c.Snapshot == nil {
		return look, err
	}
	r := c.Snapshot.Reading()
	look.Findings = append(r.Found(), look.Findings...)
	for _, line := range r.Warnings() {
		fmt.Fprintln(o.Err, "warning: from a snapshot:", line)
	}
	return look, nil
}

func (o *source) recorded(ctx context.Context, name string) (*v1alpha1.Migration, *command.Connection, error) {
	c, err := o.reach(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := migration.Get(ctx, c.Cluster, name)
	if err != nil {
		return nil, nil, err
	}
	if m == nil {
		return nil, nil, &AbsentError{Name: name, Cluster: c.Name()}
	}
	return m, c, nil
}

// AbsentError says that a cluster has no migration of a name.
type AbsentError struct{ Name, Cluster string }

func (e *AbsentError) Error() string {
	return fmt.Sprintf("migration %s does not exist in cluster %s", e.Name, e.Cluster)
}

func (*AbsentError) Advice() string {
	return "replumb status lists the migrations of the cluster; --context names another one"
}

func (o *source) recordedJob(ctx context.Context, name string) (migrations.Job, *command.Connection, error) {
	m, c, err := o.recorded(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	j, err := o.silentJob(c, m)
	return j, c, err
}

func (o *source) newJob(c *command.Connection, m *v1alpha1.Migration, dir string) (migrations.Job, error) {
	tools := o.Tools(c)
	tools.InsecureTarget, tools.Dir = o.insecureTarget, dir
	j, err := o.Kinds.NewJob(tools, m)
	if second, ok := j.(*mirror.Job); ok {
		second.WithoutTarget = o.withoutTarget
	} else if o.withoutTarget && err == nil {
		return nil, &command.UsageError{
			Problem: "--without-target is for mirrors (spec.mirror)", Hint: "leave it out: there is no other cluster",
		}
	}
	if network, ok := j.(*cni.Job); ok {
		network.AcceptDowntime = o.acceptDowntime
	}
	return j, err
}

// silentJob calls nothing that its Migration names.
func (o *source) silentJob(c *command.Connection, m *v1alpha1.Migration) (migrations.Job, error) {
	j, err := o.newJob(c, m, "")
	if err == nil {
		j.Silence()
	}
	return j, err
}

func ofJob(j migrations.Job, err error) error { return command.WithRights(err, j.About().Rights) }
