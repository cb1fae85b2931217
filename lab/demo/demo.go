// Package demo moves the Service range of a lab's cluster under traffic, with the replumb binary as a user would run
// it, and beside it moves one Service the naive way. It counts what clients on every node lived through and judges:
// replumb must have lost nothing, and the naive way something, or the probes prove nothing.
package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
)

// Cluster is what the demo needs of a lab.
type Cluster interface {
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig() string
	RESTConfig() *rest.Config
	// NodeNames are the worker nodes.
	NodeNames() []string
	// Load makes the images of archives known to every node.
	Load(ctx context.Context, archives ...string) error
}

// Options of a demo. The zero value of each field from Images on means its default.
type Options struct {
	Cluster Cluster
	// Replumb is the path of the binary to be shown.
	Replumb string
	// From is the present Service range of the cluster.
	From netip.Prefix
	// ProxyModes by node name, to be shown in the result.
	ProxyModes map[string]string

	// Images are archives with the echo and client images, if the cluster does not have them yet.
	Images []string
	// To is the range to move to; ControlRange is where the control's Service lives before its own move.
	To, ControlRange netip.Prefix
	// Result is the file to write; the Migration is written next to it.
	Result string
	// FurtherServices populate the range beside the shop.
	FurtherServices int
	// Rates per second and target, at most: clients call as often as the machine carries.
	Rate, StreamRate, LookUpRate float64
	// MinRequests is how many requests all clients together must have sent during the move, at these rates.
	MinRequests int
	// After is how long traffic is watched between the move and finish.
	After time.Duration
	// Out gets the result and what replumb prints, Progress the progress.
	Out, Progress io.Writer
}

const migrationName = "demo"

// phaseLine is how the plan begins a phase: its name, and what it does.
var phaseLine = regexp.MustCompile(`^[a-z-]+: [A-Z]`)

// Waits for things that take seconds when all is well.
const (
	readyTimeout  = 3 * time.Minute
	windowTimeout = time.Minute
	pageTimeout   = 30 * time.Second
)

func (o Options) withDefaults() Options {
	orPrefix(&o.To, "172.24.0.0/16")
	orPrefix(&o.ControlRange, "10.97.0.0/24")
	orDefault(&o.Result, filepath.Join("build", "demo", "result.json"))
	orDefault(&o.FurtherServices, 7)
	orDefault(&o.Rate, 2)
	orDefault(&o.StreamRate, 1)
	orDefault(&o.LookUpRate, 1)
	orDefault(&o.MinRequests, 400)
	orDefault(&o.After, 5*time.Second)
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	return o
}

func orDefault[T comparable](value *T, fallback T) {
	if *value == *new(T) {
		*value = fallback
	}
}

func orPrefix(value *netip.Prefix, fallback string) {
	if !value.IsValid() {
		*value = netip.MustParsePrefix(fallback)
	}
}

func (o Options) validate() error {
	switch {
	case o.Cluster == nil || len(o.Cluster.NodeNames()) == 0:
		return errors.New("demo needs a cluster with worker nodes")
	case o.Replumb == "":
		return errors.New("demo needs the path of the replumb binary")
	case !o.From.IsValid():
		return errors.New("demo needs the present Service range of the cluster")
	case o.From.Overlaps(o.ControlRange) || o.To.Overlaps(o.ControlRange) || o.From.Overlaps(o.To):
		return fmt.Errorf("ranges %s, %s and %s overlap", o.From, o.To, o.ControlRange)
	}
	return nil
}

// demo is one run.
type demo struct {
	Options
	client kubernetes.Interface
	dir    string
	logs   *traffic.Watch
}

// Run shows the move and judges it. The cluster is up; the caller takes it down.
func Run(ctx context.Context, options Options) error {
	d := &demo{Options: options.withDefaults()}
	if err := d.validate(); err != nil {
		return err
	}
	d.dir = filepath.Dir(d.Result)
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	var err error
	if d.client, err = kubernetes.NewForConfig(d.Cluster.RESTConfig()); err != nil {
		return fmt.Errorf("connect to the cluster: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := d.deploy(ctx); err != nil {
		return err
	}
	defer d.logs.Stop()
	timeline, err := d.show(ctx)
	if err != nil {
		return err
	}
	return d.judge(timeline)
}

// timeline holds the instants that part before, during and after, and the windows seen up to finish.
type timeline struct {
	moveBegan, moveEnded time.Time
	// load is how much clients ask, and how they were answered before anything was changed.
	load traffic.Load
	// atFinish is what had been counted when finish began: the last word on old addresses, which finish retires.
	// Every request in it was answered or given up before.
	atFinish map[traffic.Source]probe.Series
	// atEnd is everything.
	atEnd map[traffic.Source]probe.Series
}

// show is the demo as the user sees it, top to bottom.
func (d *demo) show(ctx context.Context) (t timeline, err error) {
	migration, err := d.writeMigration()
	if err != nil {
		return t, err
	}
	t.load = d.logs.Load()
	d.say("%s", t.load)
	if err := d.plan(ctx, migration); err != nil {
		return t, err
	}
	t.moveBegan = floorSecond(time.Now())
	if err := d.moveBoth(ctx, migration); err != nil {
		return t, err
	}
	t.moveEnded = ceilSecond(time.Now())
	d.say("Watching %v of traffic at the new addresses", d.After)
	if err := d.logs.Await(ctx, windowTimeout, "traffic after the move", traffic.All, traffic.Until(t.moveEnded.Add(d.After))); err != nil {
		return t, err
	}
	t.atFinish = d.logs.Snapshot()
	if err := d.replumb(ctx, "finish", migrationName, "--yes", "--quiet"); err != nil {
		return t, err
	}
	finished := ceilSecond(time.Now()).Add(2 * time.Second)
	if err := d.logs.Await(ctx, windowTimeout, "traffic after finish", notOldAddress, traffic.Until(finished)); err != nil {
		return t, err
	}
	t.atEnd = d.logs.Snapshot()
	return t, nil
}

// moveBoth applies the migration, shows where it stands meanwhile, and in the middle of it moves the control's Service the naive way.
func (d *demo) moveBoth(ctx context.Context, migration string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	control := make(chan error, 1)
	go func() { control <- d.moveControlMidway(ctx) }()
	applyErr := d.apply(ctx, migration)
	if applyErr != nil {
		cancel()
	}
	// All Services have moved when apply succeeds, so the control has had its cue and ends by itself.
	controlErr := <-control
	if applyErr != nil {
		return applyErr
	}
	return controlErr
}

// writeMigration writes what the user would have written. It names the range to empty, because the control's Service
// lives in a range of its own that is none of replumb's business. Old addresses answer for longer than CoreDNS caches (30 s).
func (d *demo) writeMigration() (string, error) {
	text := fmt.Sprintf(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata:
  name: %s
spec:
  serviceCIDR:
    from: [%s]
    to: [%s]
    drain: 35s
    clusterServices: Stay
    refresh: {mode: Report}
  batch:
    size: 6
    settle: 1s
`, migrationName, d.From, d.To)
	path := filepath.Join(d.dir, "migration.yaml")
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// plan shows how many steps each phase has, and where all of them are written down.
func (d *demo) plan(ctx context.Context, migration string) error {
	d.say("$ replumb plan -f %s", migration)
	var whole bytes.Buffer
	if err := d.run(ctx, &whole, d.Progress, "plan", "-f", migration); err != nil {
		return err
	}
	path := filepath.Join(d.dir, "plan.txt")
	if err := os.WriteFile(path, whole.Bytes(), 0o644); err != nil {
		return err
	}
	_, err := fmt.Fprintf(d.Out, "%severy step, and what it writes: %s\n", planSummary(whole.String()), path)
	return err
}

// planSummary is a line for each phase of a plan that replumb has printed: a phase begins at the margin, and a step two columns from it.
func planSummary(plan string) string {
	var out strings.Builder
	title, steps := "", 0
	end := func() {
		if title != "" {
			fmt.Fprintf(&out, "%s (%s)\n", title, english.Plural(steps, "step", ""))
		}
	}
	for line := range strings.Lines(plan) {
		line = strings.TrimRight(line, "\n")
		switch {
		case phaseLine.MatchString(line):
			end()
			title, steps = line, 0
		case strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "   "):
			steps++
		}
	}
	end()
	return out.String()
}

// apply runs apply without its lines about every step, and beside it the page that shows where it stands. What apply has to say in the end
// comes after that page, which may be drawn over the whole terminal.
func (d *demo) apply(ctx context.Context, migration string) error {
	d.say("$ replumb apply -f %s --yes --quiet & replumb status %s --watch", migration, migrationName)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		d.follow(watching)
	}()
	var said bytes.Buffer
	err := d.run(ctx, &said, d.Progress, "apply", "-f", migration, "--yes", "--quiet")
	if err != nil {
		stop()
	}
	defer time.AfterFunc(pageTimeout, stop).Stop() // it ends by itself before that, having seen where the migration has got
	<-watched
	_, _ = d.Out.Write(said.Bytes())
	return err
}

// follow shows the page from when the migration is recorded until it is where it shall be. That nothing can be shown is no reason to stop.
func (d *demo) follow(ctx context.Context) {
	recorded := func(ctx context.Context) (bool, error) {
		return d.run(ctx, io.Discard, io.Discard, "status", migrationName, "-o", "name") == nil, nil
	}
	if err := wait.PollUntilContextCancel(ctx, time.Second, true, recorded); err == nil {
		_ = d.run(ctx, d.Out, io.Discard, "status", migrationName, "--watch")
	}
}

// replumb runs the binary the way a user does, its output going where the user looks.
func (d *demo) replumb(ctx context.Context, args ...string) error {
	d.say("$ replumb %s", strings.Join(args, " "))
	return d.run(ctx, d.Out, d.Progress, args...)
}

func (d *demo) run(ctx context.Context, out, progress io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, d.Replumb, append(args, "--kubeconfig", d.Cluster.Kubeconfig())...)
	cmd.Stdout, cmd.Stderr = out, progress
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("replumb %s: %w", args[0], err)
	}
	return nil
}

func (d *demo) say(format string, args ...any) {
	// Progress that cannot be shown is no reason to stop.
	_, _ = fmt.Fprintf(d.Progress, "\n==> "+format+"\n", args...)
}

func floorSecond(t time.Time) time.Time { return t.Truncate(time.Second) }

func ceilSecond(t time.Time) time.Time {
	if floor := floorSecond(t); !floor.Equal(t) {
		return floor.Add(time.Second)
	}
	return t
}
