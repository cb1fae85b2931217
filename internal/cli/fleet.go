package cli

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
	"github.com/replumb/replumb/internal/fleet"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/spec"
)

func (a *app) fleet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "fleet", Short: "Run one migration over many clusters, in waves", Args: noArgs,
		Long: `Run one migration over many clusters, in waves, halted by the first loss.

The file of kind Fleet names a Migration, the clusters with what differs in each, and the waves. Each cluster gets a replumb of its own,
which resumes as every other does: after an interruption or a repair, run the same command again. docs/howto/fleets.md explains it.`,
		Example: a.example(`
  replumb fleet check -f fleet.yaml
  replumb fleet plan -f fleet.yaml
  replumb fleet apply -f fleet.yaml
  replumb fleet status -f fleet.yaml
  replumb fleet finish -f fleet.yaml`),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.fleetCheck(), a.fleetPlan(), a.fleetStatus(), a.fleetReport(),
		a.fleetAct(fleet.Apply, &cobra.Command{
			Use: "apply -f FILE", Short: "Apply the migration in one wave after the other",
			Long: `Apply the migration in one wave after the other. Names clusters, servers and target ranges, and asks once.

The first cluster in which it does not get through halts the fleet: the others of its wave are interrupted, which leaves them where that is
safe, and no further one begins. Run again it goes on: clusters that are through do nothing. After each wave its soak is waited for, and the
health action is called; if it fails, no further wave begins.

Exit code: the worst of those of the clusters, 4 (requests were lost) before 6 (losses cannot be
measured), 1, 3, 5, 2 and 130.`,
			Example: a.example(`
  replumb fleet apply -f fleet.yaml
  replumb fleet apply -f fleet.yaml --yes -o json   # each event with its cluster, one a line`),
		}),
		a.fleetAct(fleet.Rollback, &cobra.Command{
			Use:   "rollback -f FILE",
			Short: "Roll the migration back, the last wave first",
			Long: `Roll the migration back, the last wave first. Clusters in which it has not begun, or is rolled back, are left alone. It does
not begin in any cluster if one has passed the point of no return, or cannot be reached: --wave and --cluster leave it out.`,
			Example: a.example(`
  replumb fleet rollback -f fleet.yaml
  replumb fleet rollback -f fleet.yaml --cluster eu-1   # this one by itself
  replumb fleet rollback -f fleet.yaml --yes --late Move`),
		}),
		a.fleetAct(fleet.Finish, &cobra.Command{
			Use:   "finish -f FILE",
			Short: "Take old addresses away in all clusters, for good",
			Long: `Take old addresses away in all clusters, wave by wave. This passes the point of no return of each. It does not begin in any
cluster as long as apply has something left to do in one, or one cannot be reached: --wave and --cluster leave it out.`,
			Example: a.example(`
  replumb fleet finish -f fleet.yaml
  replumb fleet finish -f fleet.yaml --wave canary   # the clusters of this wave`),
		}),
	)
	return cmd
}

// fleetFlags are those of a command about a fleet.
type fleetFlags struct {
	file            string
	waves, clusters []string
	late            string
	leaveClients    bool
}

func (f *fleetFlags) declare(cmd *cobra.Command) {
	cmd.Args = noArgs
	cmd.Flags().StringVarP(&f.file, "filename", "f", "", "file with the Fleet")
}

func (f *fleetFlags) declarePick(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.waves, "wave", nil, "only the clusters of this wave; may be given more than once")
	cmd.Flags().StringSliceVar(&f.clusters, "cluster", nil, "only this cluster of the fleet; may be given more than once")
}

// fleetRun is a fleet that a command is about.
type fleetRun struct {
	*fleet.Fleet
	targets []*fleet.Target
	program *fleet.Program
}

// openFleet reads a Fleet with its Migration, and says what is wrong in either before any cluster is asked.
func (a *app) openFleet(cmd *cobra.Command, f *fleetFlags) (*fleetRun, error) {
	if f.file == "" {
		return nil, &UsageError{Problem: "name the file with the Fleet", Hint: cmd.CommandPath() + " -f FILE"}
	}
	body, err := os.ReadFile(f.file)
	if err != nil {
		return nil, &UsageError{Problem: err.Error(), Hint: "name a file that can be read with -f"}
	}
	dir, err := filepath.Abs(filepath.Dir(f.file))
	if err != nil {
		return nil, err
	}
	whole, err := fleet.Parse(spec.Source{Name: f.file, Body: body, Dir: dir})
	if err != nil {
		return nil, err
	}
	targets, err := whole.Targets()
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		a.dir = t.Dir
		if _, err := a.newJob(nil, t.Migration); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", t.Name, err)
		}
	}
	run := &fleetRun{Fleet: whole}
	if run.program, err = a.fleetProgram(cmd); err != nil {
		return nil, err
	}
	return run, run.pick(f, targets)
}

// pick leaves out what the flags do not name.
func (r *fleetRun) pick(f *fleetFlags, all []*fleet.Target) error {
	for _, name := range f.clusters {
		if r.WaveOf(name) == "" {
			return &UsageError{Problem: fmt.Sprintf("the fleet has no cluster %q", name), Hint: "name one of spec.clusters with --cluster"}
		}
	}
	for _, name := range f.waves {
		if !slices.ContainsFunc(r.Spec.Waves, func(w fleet.Wave) bool { return w.Name == name }) {
			return &UsageError{Problem: fmt.Sprintf("the fleet has no wave %q", name), Hint: "name one of spec.waves with --wave"}
		}
	}
	r.Fleet = r.Pick(f.waves, f.clusters)
	for _, c := range r.Spec.Clusters { // in the order of the waves
		for _, t := range all {
			if t.Name == c.Name {
				r.targets = append(r.targets, t)
			}
		}
	}
	if len(r.targets) == 0 {
		return &UsageError{Problem: "no cluster is in both --wave and --cluster", Hint: "name a cluster of the wave, or leave one flag out"}
	}
	return nil
}

// fleetProgram is this very program, with the flags that clusters share.
func (a *app) fleetProgram(cmd *cobra.Command) (*fleet.Program, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &fleet.Program{Path: path, Name: os.Args[0]}
	if p.Flags, err = sharedFlags(cmd.InheritedFlags()); err != nil {
		return nil, err
	}
	if file := a.config.KubeConfig; file != nil && *file != "" {
		if p.Kubeconfig, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// sharedFlags are those that hold for every cluster. Those that name a cluster, or a user of one, are refused: the Fleet does.
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
			err = &UsageError{
				Problem: "--" + f.Name + " is about one cluster", Hint: "the Fleet names the context of each: leave the flag out",
			}
		}
	})
	return shared, err
}

// fleetAct is the command of an action.
func (a *app) fleetAct(action fleet.Action, cmd *cobra.Command) *cobra.Command {
	f := &fleetFlags{}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		run, err := a.openFleet(cmd, f)
		if err != nil {
			return err
		}
		run.program.More = f.more(action)
		return a.actOnFleet(cmd.Context(), run, action)
	}
	f.declare(cmd)
	switch action {
	case fleet.Rollback:
		lateFlag(cmd, &f.late)
		f.declarePick(cmd)
	case fleet.Finish:
		cmd.Flags().BoolVar(&f.leaveClients, "leave-clients", false, "don't wait until no one uses old addresses (spec.serviceCIDR)")
		f.declarePick(cmd)
	}
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}

// more are the flags of an action that its clusters get.
func (f *fleetFlags) more(action fleet.Action) (flags []string) {
	if action == fleet.Rollback && f.late != "" {
		flags = append(flags, "--late", f.late)
	}
	if action == fleet.Finish && f.leaveClients {
		flags = append(flags, "--leave-clients")
	}
	return flags
}

// actOnFleet says what is about to be changed, asks, and runs the waves.
func (a *app) actOnFleet(ctx context.Context, run *fleetRun, action fleet.Action) error {
	if h := run.Spec.Health; h != nil && action == fleet.Apply {
		if err := callout.Check(*h); err != nil {
			return &spec.Error{Field: "spec.health", Problem: err.Error(), Hint: "replumb calls it from this machine: see that it is there"}
		}
	}
	if err := a.introduceFleet(run); err != nil {
		return err
	}
	if action != fleet.Apply {
		if err := action.Refusal(fleet.States(ctx, run.program, run.targets)); err != nil {
			return err
		}
	}
	question := fmt.Sprintf("%s migration %s in %s?", map[fleet.Action]string{
		fleet.Apply: "Apply", fleet.Rollback: "Roll back", fleet.Finish: "Take old addresses away, for good, of",
	}[action], run.targets[0].Migration.Name, theseClusters(len(run.targets)))
	if err := a.confirm(question); err != nil {
		return err
	}
	runner := &fleet.Runner{
		Fleet: run.Fleet, Targets: run.targets, Action: action, Replumb: run.program, Now: time.Now, Wait: waitFor,
	}
	if h := run.Spec.Health; h != nil {
		runner.Health = func(ctx context.Context, r fleet.HealthRequest) error { return callout.Call(ctx, *h, r, nil) }
	}
	runner.OnEvent, run.program.OnLine = a.fleetEvents()
	err := runner.Run(ctx)
	if a.output == "json" || ctx.Err() != nil {
		return err
	}
	return errors.Join(err, fleetTable(a.out, fleet.States(ctx, run.program, run.targets)))
}

func theseClusters(n int) string {
	if n == 1 {
		return "this cluster"
	}
	return "these " + english.Plural(n, "cluster", "")
}

// waitFor waits, unless it is cancelled.
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

// fleetEvents is where what happens goes to: events to stdout with -o json, lines for people to stderr. What clusters say on stderr is for
// people in any case.
func (a *app) fleetEvents() (tell func(fleet.Event), hear func(*fleet.Target, fleet.Line)) {
	progress := &fleet.Progress{Out: a.err, Quiet: a.settings.quiet}
	if a.output != "json" {
		return func(e fleet.Event) { progress.OnEvent(e) }, progress.OnLine
	}
	var mu sync.Mutex
	printLine := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(verbatim{a.out}, line)
	}
	tell = func(e fleet.Event) {
		if body, err := json.Marshal(e); err == nil {
			printLine(string(body))
		}
	}
	return tell, func(t *fleet.Target, l fleet.Line) {
		if line, ok := fleet.Tagged(t.Name, l.Text); l.Event && ok {
			printLine(line)
		} else {
			progress.OnLine(t, fleet.Line{Text: l.Text})
		}
	}
}

// introduceFleet reports which clusters are about to be changed, and where they are. No two may be the same.
func (a *app) introduceFleet(run *fleetRun) error {
	rows := [][]string{{"WAVE", "CLUSTER", "CONTEXT", "SERVER", "TARGET"}}
	at := map[string]string{}
	for _, t := range run.targets {
		server, key, err := a.serverOf(t, run.program.Kubeconfig)
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
	return terminal.Table(a.err, rows)
}

// serverOf is where the context of a cluster leads to, and what tells it apart from others.
func (a *app) serverOf(t *fleet.Target, kubeconfig string) (server, key string, err error) {
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
