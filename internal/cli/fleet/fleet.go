// Package fleet is the commands that run one migration over many clusters.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/spec"
)

// Command is fleet, with those below it.
func Command(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fleet", Short: "Run one migration over many clusters, in waves", Args: command.NoArgs,
		Long: `Run one migration over many clusters, in waves, halted by the first loss.

The file of kind Fleet names a Migration, the clusters with what differs in each, and the waves. Each cluster
gets a replumb of its own, which resumes as every other does: after an interruption or a repair, run the same
command again. docs/howto/fleets.md explains it.`,
		Example: a.Example(`
  replumb fleet check -f fleet.yaml
  replumb fleet plan -f fleet.yaml
  replumb fleet apply -f fleet.yaml
  replumb fleet status -f fleet.yaml
  replumb fleet finish -f fleet.yaml`),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		check(a), plan(a), status(a), report(a),
		act(a, fleet.Apply, &cobra.Command{
			Use: "apply -f FILE", Short: "Apply the migration in one wave after the other",
			Long: `Apply the migration in one wave after the other. Names clusters, servers and target ranges, and asks once.

The first cluster in which it does not get through halts the fleet: the others of its wave are interrupted,
which leaves them where that is safe, and no further one begins. Run again it goes on: clusters that are through
do nothing. After each wave its soak is waited for, and the health action is called; if it fails, no further
wave begins.

Exit code: the worst of those of the clusters, 4 (requests were lost) before 6 (losses cannot be
measured), 1, 3, 5, 2 and 130.`,
			Example: a.Example(`
  replumb fleet apply -f fleet.yaml
  replumb fleet apply -f fleet.yaml --yes -o json   # each event with its cluster, one a line`),
		}),
		act(a, fleet.Rollback, &cobra.Command{
			Use:   "rollback -f FILE",
			Short: "Roll the migration back, the last wave first",
			Long: `Roll the migration back, the last wave first. Clusters in which it has not begun, or is rolled back, are left
alone. It does not begin in any cluster if one has passed the point of no return, or cannot be reached: --wave
and --cluster leave it out.`,
			Example: a.Example(`
  replumb fleet rollback -f fleet.yaml
  replumb fleet rollback -f fleet.yaml --cluster eu-1   # this one by itself
  replumb fleet rollback -f fleet.yaml --yes --late Move`),
		}),
		act(a, fleet.Finish, &cobra.Command{
			Use:   "finish -f FILE",
			Short: "Take old addresses away in all clusters, for good",
			Long: `Take old addresses away in all clusters, wave by wave. This passes the point of no return of each. It does not
begin in any cluster as long as apply has something left to do in one, or one cannot be reached: --wave and
--cluster leave it out.`,
			Example: a.Example(`
  replumb fleet finish -f fleet.yaml
  replumb fleet finish -f fleet.yaml --wave canary   # the clusters of this wave`),
		}),
	)
	return cmd
}

type options struct {
	*command.App
	format          command.Format
	file            string
	waves, clusters []string
}

type actOptions struct {
	options
	yes          bool
	late         string
	leaveClients bool
}

func (o *options) declare(cmd *cobra.Command) {
	cmd.Args = command.NoArgs
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "file with the Fleet")
}

func (o *options) declarePick(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&o.waves, "wave", nil, "only the clusters of this wave; may be given more than once")
	cmd.Flags().StringSliceVar(&o.clusters, "cluster", nil, "only this cluster of the fleet; may be given more than once")
}

type run struct {
	*fleet.Fleet
	targets []*fleet.ClusterTarget
	program *fleet.Program
}

func (o *options) open(cmd *cobra.Command) (*run, error) {
	if o.file == "" {
		return nil, &command.UsageError{Problem: "name the file with the Fleet", Hint: cmd.CommandPath() + " -f FILE"}
	}
	body, err := os.ReadFile(o.file)
	if err != nil {
		return nil, &command.UsageError{Problem: err.Error(), Hint: "name a file that can be read with -f"}
	}
	dir, err := filepath.Abs(filepath.Dir(o.file))
	if err != nil {
		return nil, err
	}
	whole, err := fleet.Parse(spec.Source{Name: o.file, Body: body, Dir: dir})
	if err != nil {
		return nil, err
	}
	targets, err := whole.Targets()
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		tools := o.Tools(nil)
		tools.Dir = t.Dir
		if _, err := o.Kinds.NewJob(tools, t.Migration); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", t.Name, err)
		}
	}
	r := &run{Fleet: whole}
	if r.program, err = o.program(cmd); err != nil {
		return nil, err
	}
	return r, r.pick(o, targets)
}

func (r *run) pick(o *options, all []*fleet.ClusterTarget) error {
	for _, name := range o.clusters {
		if r.WaveOf(name) == "" {
			return &command.UsageError{Problem: fmt.Sprintf("the fleet has no cluster %q", name), Hint: "name one of spec.clusters with --cluster"}
		}
	}
	for _, name := range o.waves {
		if !slices.ContainsFunc(r.Spec.Waves, func(w fleet.Wave) bool { return w.Name == name }) {
			return &command.UsageError{Problem: fmt.Sprintf("the fleet has no wave %q", name), Hint: "name one of spec.waves with --wave"}
		}
	}
	r.Fleet = r.Pick(o.waves, o.clusters)
	for _, c := range r.Spec.Clusters { // in the order of the waves
		for _, t := range all {
			if t.Name == c.Name {
				r.targets = append(r.targets, t)
			}
		}
	}
	if len(r.targets) == 0 {
		return &command.UsageError{Problem: "no cluster is in both --wave and --cluster", Hint: "name a cluster of the wave, or leave one flag out"}
	}
	return nil
}

func (o *options) program(cmd *cobra.Command) (*fleet.Program, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &fleet.Program{Path: path, Name: os.Args[0]}
	if p.Flags, err = sharedFlags(cmd.InheritedFlags()); err != nil {
		return nil, err
	}
	if file := o.Config.KubeConfig; file != nil && *file != "" {
		if p.Kubeconfig, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// sharedFlags hold for every cluster. Flags that name a cluster or its user are refused.
func sharedFlags(flags *pflag.FlagSet) (shared []string, err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		switch {
		case !f.Changed:
			return
		case slices.Contains([]string{"kubeconfig", "timeout", "quiet"}, f.Name):
		case slices.Contains([]string{"as", "as-group", "as-uid", "request-timeout", "disable-compression", "cache-dir", "v"}, f.Name):
			values := []string{f.Value.String()}
			if many, ok := f.Value.(pflag.SliceValue); ok {
				values = many.GetSlice()
			}
			for _, value := range values {
				shared = append(shared, "--"+f.Name+"="+value)
			}
		default:
			err = &command.UsageError{
				Problem: "--" + f.Name + " is about one cluster", Hint: "the Fleet names the context of each: leave the flag out",
			}
		}
	})
	return shared, err
}

func act(a *command.App, action fleet.ClusterAction, cmd *cobra.Command) *cobra.Command {
	o := &actOptions{options: options{App: a}}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := o.open(cmd)
		if err != nil {
			return err
		}
		r.program.More = o.more()
		return o.act(cmd.Context(), r, action)
	}
	o.declare(cmd)
	switch action {
	case fleet.Rollback:
		command.LateFlag(cmd, &o.late)
		o.declarePick(cmd)
	case fleet.Finish:
		cmd.Flags().BoolVar(&o.leaveClients, "leave-clients", false, "don't wait until no one uses old addresses (spec.serviceCIDR)")
		o.declarePick(cmd)
	}
	o.format.Declare(cmd, "table", "json")
	command.YesFlag(cmd, &o.yes)
	return cmd
}

func (o *actOptions) more() (flags []string) {
	if o.late != "" {
		flags = append(flags, "--late", o.late)
	}
	if o.leaveClients {
		flags = append(flags, "--leave-clients")
	}
	return flags
}

func (o *actOptions) act(ctx context.Context, r *run, action fleet.ClusterAction) error {
	if h := r.Spec.Health; h != nil && action == fleet.Apply {
		if err := callout.Check(*h); err != nil {
			return &spec.Error{Field: "spec.health", Problem: err.Error(), Hint: "replumb calls it from this machine: see that it is there"}
		}
	}
	if err := o.introduce(r); err != nil {
		return err
	}
	if action != fleet.Apply {
		if err := action.Refusal(fleet.States(ctx, r.program, r.targets)); err != nil {
			return err
		}
	}
	question := fmt.Sprintf("%s migration %s in %s?", map[fleet.ClusterAction]string{
		fleet.Apply: "Apply", fleet.Rollback: "Roll back", fleet.Finish: "Take old addresses away, for good, of",
	}[action], r.targets[0].Migration.Name, theseClusters(len(r.targets)))
	if err := o.Confirm(o.yes, question); err != nil {
		return err
	}
	runner := &fleet.WaveRunner{
		Fleet: r.Fleet, Targets: r.targets, Action: action, Replumb: r.program, Now: time.Now, Wait: waitFor,
	}
	if h := r.Spec.Health; h != nil {
		runner.Health = func(ctx context.Context, asked fleet.HealthRequest) error { return callout.Call(ctx, *h, asked, nil) }
	}
	runner.OnEvent, r.program.OnLine = o.events()
	err := runner.Run(ctx)
	if o.format.Name == "json" || ctx.Err() != nil {
		return err
	}
	return errors.Join(err, writeTable(o.Out, fleet.States(ctx, r.program, r.targets)))
}

func theseClusters(n int) string {
	if n == 1 {
		return "this cluster"
	}
	return "these " + english.Plural(n, "cluster", "")
}

func waitFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// events go to stdout with -o json, else as lines for people to stderr.
func (o *options) events() (onEvent func(fleet.Event), onLine func(*fleet.ClusterTarget, fleet.OutputLine)) {
	progress := &fleet.ProgressPrinter{Out: o.Err, Quiet: o.Settings.Quiet}
	if o.format.Name != "json" {
		return progress.OnEvent, progress.OnLine
	}
	var mu sync.Mutex
	printLine := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(o.Out.Verbatim(), line)
	}
	onEvent = func(e fleet.Event) {
		if body, err := json.Marshal(e); err == nil {
			printLine(string(body))
		}
	}
	return onEvent, func(t *fleet.ClusterTarget, l fleet.OutputLine) {
		if line, ok := fleet.Tagged(t.Name, l.Text); l.Event && ok {
			printLine(line)
		} else {
			progress.OnLine(t, fleet.OutputLine{Text: l.Text})
		}
	}
}

// introduce prints which clusters are about to be changed. No two may be the same.
func (o *options) introduce(r *run) error {
	rows := [][]string{{"WAVE", "CLUSTER", "CONTEXT", "SERVER", "TARGET"}}
	at := map[string]string{}
	for _, t := range r.targets {
		server, key, err := serverOf(t, r.program.Kubeconfig)
		if err != nil {
			return err
		}
		if other, ok := at[key]; ok {
			return &spec.Error{
				Field:   "cluster " + t.Name,
				Problem: fmt.Sprintf("is at %s, and so is cluster %s", server, other),
				Hint:    "list each cluster once",
			}
		}
		at[key] = t.Name
		rows = append(rows, []string{t.Wave, t.Name, t.Context, server, t.Takes()})
	}
	return terminal.Table(o.Err, rows)
}

// serverOf is where the context of a cluster leads to, and what tells it apart from others.
func serverOf(t *fleet.ClusterTarget, kubeconfig string) (server, key string, err error) {
	raw, err := rawConfig(t.Kubeconfig, kubeconfig)
	if err != nil {
		return "", "", &spec.Error{Field: "cluster " + t.Name, Problem: err.Error(), Hint: "name a file that can be read by kubeconfig"}
	}
	to := raw.Contexts[t.Context]
	if to == nil || raw.Clusters[to.Cluster] == nil {
		return "", "", &spec.Error{
			Field: "cluster " + t.Name, Problem: fmt.Sprintf("the kubeconfig has no context %q that leads to a cluster", t.Context),
			Hint: "kubectl config get-contexts lists them",
		}
	}
	c := raw.Clusters[to.Cluster]
	return c.Server, strings.Join([]string{c.Server, c.TLSServerName, c.ProxyURL}, " "), nil
}
