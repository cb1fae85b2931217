package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/verify/memtrim"
	"github.com/replumb/replumb/internal/verify/probe"
)

const targetHint = "write http://HOST:PORT/PATH, https://HOST/PATH, tcp://HOST:PORT, udp://HOST:PORT, stream://HOST:PORT or dns://NAME[@SERVER:PORT]"

type probeOptions struct {
	*command.App
	format       command.Format
	file         string
	rate         float64
	timeout      time.Duration
	duration     time.Duration
	expectStatus int
	budget       int
	caFile       string
	insecure     bool
}

// Probe sends requests at a steady rate, and reports each that is lost.
func Probe(a *command.App) *cobra.Command {
	o := &probeOptions{App: a}
	cmd := &cobra.Command{
		Use:   "probe TARGET... | -f FILE",
		Short: "Send requests at a steady rate, and report each that is lost",
		Long: `Send requests at a steady rate, whatever becomes of those before, and tell each loss as it happens, until
interrupted or for --duration. No cluster is needed.

    http://HOST:PORT/PATH  https://HOST/PATH   GET, over a new connection each time
    tcp://HOST:PORT                            connect, and close
    udp://HOST:PORT                            a datagram that must be echoed, from a new socket each time
    stream://HOST:PORT                         numbered lines over one connection, each to be echoed
    dns://NAME[@SERVER:PORT]                   look the name up, A and AAAA

A stall is a stretch of 50ms or more, and of two requests at least, in which none was answered, though they may
all have been in the end. To see one of 100ms, take a rate of 40 or more. Beyond some 400 new TCP connections a
second to one address, Linux may run out of ports.

A late answer was good, but took more than a second, or a second question to a name server: something on the way
was lost and sent again. It is no failure. A request is not measured if this machine stood still, or could not
send it in time: it says nothing of the target.

Exit code: 0 done, 1 error, 2 wrong command line, 4 more requests failed than --budget allows, 6 more than one
in a thousand could not be measured.`,
		Example: a.Example(`
  replumb probe http://shop.example.com/healthz
  replumb probe tcp://10.96.0.1:443 dns://kubernetes.default.svc.cluster.local@10.96.0.10 --rate 50
  replumb probe https://shop.example.com/ --duration 10m --budget 3 -o json
  replumb probe -f probes.yaml    # targets: [{name: shop, kind: http, address: "shop:80", path: /healthz, rate: 20}]`),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := o.config(cmd.Flags(), args)
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), config)
		},
	}
	o.format.Declare(cmd, "table", "json")
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "filename", "f", "", "file with targets, or - for stdin; flags hold for what it leaves open")
	flags.Float64Var(&o.rate, "rate", probe.DefaultRate, "requests per second to each target")
	flags.DurationVar(&o.timeout, "timeout", probe.DefaultTimeout, "how long an answer may take")
	flags.DurationVar(&o.duration, "duration", 0, "how long to probe (default until interrupted)")
	flags.IntVar(&o.expectStatus, "expect-status", 200, "the HTTP status of a good answer")
	flags.IntVar(&o.budget, "budget", 0, "how many requests may fail")
	flags.StringVar(&o.caFile, "ca-file", "", "file with the authorities that certificates are verified by (default the system's)")
	flags.BoolVar(&o.insecure, "insecure-skip-verify", false, "do not verify certificates")
	return cmd
}

func (o *probeOptions) check() error {
	switch {
	case o.rate <= 0:
		return &command.UsageError{Problem: fmt.Sprintf("--rate %v is not above 0", o.rate), Hint: "--rate 10 sends ten requests a second"}
	case o.timeout <= 0:
		return &command.UsageError{Problem: fmt.Sprintf("--timeout %v is not above 0", o.timeout), Hint: "--timeout 5s waits five seconds"}
	case o.duration < 0:
		return &command.UsageError{Problem: fmt.Sprintf("--duration %v is negative", o.duration), Hint: "--duration 10m probes for ten minutes"}
	case o.budget < 0:
		return &command.UsageError{Problem: fmt.Sprintf("--budget %d is negative", o.budget), Hint: "--budget 0 allows no failure"}
	case o.caFile == "":
		return nil
	}
	if _, err := os.Stat(o.caFile); err != nil {
		return &command.UsageError{Problem: err.Error(), Hint: "name a file with certificates in PEM with --ca-file"}
	}
	return nil
}

func (o *probeOptions) config(flags *pflag.FlagSet, args []string) (probe.Config, error) {
	var config probe.Config
	if err := o.check(); err != nil {
		return config, err
	}
	if len(args) == 0 && o.file == "" {
		return config, &command.UsageError{Problem: "name a target", Hint: targetHint}
	}
	for _, text := range args {
		target, err := probe.ParseTarget(text)
		if err != nil {
			return config, &command.UsageError{Problem: err.Error(), Hint: targetHint}
		}
		config.Targets = append(config.Targets, target)
	}
	if o.file != "" {
		more, err := o.readTargets(o.file)
		if err != nil {
			return config, &command.UsageError{Problem: err.Error(), Hint: o.Name + " probe --help has an example of a file"}
		}
		config.Targets = append(config.Targets, more.Targets...)
	}
	if err := o.fill(flags, config.Targets); err != nil {
		return config, err
	}
	config, err := config.Resolve("")
	if err != nil {
		return config, &command.UsageError{Problem: err.Error(), Hint: o.Name + " probe --help"}
	}
	return config, nil
}

func (o *probeOptions) readTargets(file string) (probe.Config, error) {
	body, err := o.ReadAll(file)
	if err != nil {
		return probe.Config{}, err
	}
	asJSON, err := yaml.YAMLToJSONStrict(body)
	if err != nil { // it may tell of several lines
		return probe.Config{}, fmt.Errorf("%s: %s", file, strings.Join(strings.Fields(err.Error()), " "))
	}
	config, err := probe.ParseConfig(asJSON)
	if err != nil {
		return probe.Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return config, nil
}

// fill applies the flags to what targets leave open. A flag that applies to none is refused: it was
// meant for something.
func (o *probeOptions) fill(flags *pflag.FlagSet, targets []probe.Target) error {
	http := func(t probe.Target) bool { return t.Kind == probe.HTTP }
	secure := func(t probe.Target) bool { return t.Kind == probe.HTTP && t.TLS }
	for flag, of := range map[string]func(probe.Target) bool{"expect-status": http, "ca-file": secure, "insecure-skip-verify": secure} {
		if flags.Changed(flag) && !slices.ContainsFunc(targets, of) {
			return &command.UsageError{Problem: "--" + flag + " would have no effect on these targets", Hint: "leave it out"}
		}
	}
	for i := range targets {
		t := &targets[i]
		if t.Rate == 0 {
			t.Rate = o.rate
		}
		if t.Timeout == 0 {
			t.Timeout = probe.Duration(o.timeout)
		}
		if http(*t) && t.ExpectStatus == 0 {
			t.ExpectStatus = o.expectStatus
		}
		if secure(*t) && t.CAFile == "" && !t.InsecureSkipVerify {
			t.CAFile, t.InsecureSkipVerify = o.caFile, o.insecure
		}
	}
	return nil
}

func (o *probeOptions) run(ctx context.Context, config probe.Config) error {
	_ = memtrim.Trim() // with more memory it probes as well
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors(config)))
	ledger := probe.NewLedger(config)
	var err error
	if o.format.Name == "json" {
		err = o.probeAsJSON(ctx, config, ledger)
	} else {
		err = o.probeForPeople(ctx, config, ledger)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) { // a reader that left had enough
		return err
	}
	summary := ledger.Summary(o.budget)
	if o.format.Name == "json" {
		err = json.NewEncoder(o.Out.Verbatim()).Encode(map[string]probe.Summary{"summary": summary})
	} else {
		err = terminal.ProbeSummary(o.Out, summary)
	}
	if err != nil {
		return err
	}
	return summary.Err()
}

// quiet is the rate of all targets that one processor is enough for by far. Waking a second one to
// look for work takes more than a request.
const quiet = 200

func processors(config probe.Config) int {
	sum := 0.0
	for _, target := range config.Targets {
		sum += target.Rate
	}
	if sum <= quiet {
		return 1
	}
	return runtime.NumCPU()
}

func (o *probeOptions) probeAsJSON(ctx context.Context, config probe.Config, ledger *probe.Ledger) error {
	lines := json.NewEncoder(o.Out.Verbatim())
	return probe.New(config, func(w probe.Interval) error {
		if err := errors.Join(ledger.Add(w), lines.Encode(w)); err != nil {
			return err
		}
		return o.Out.Broken()
	}).Run(ctx)
}

func (o *probeOptions) probeForPeople(ctx context.Context, config probe.Config, ledger *probe.Ledger) error {
	var progress *terminal.ProgressLine
	if f := o.Terminal(); f != nil {
		progress = terminal.NewProgress(f, int(f.Fd()))
	}
	people := terminal.NewProbes(o.Err, progress)
	defer people.Close()
	prober := probe.New(config, func(w probe.Interval) error {
		people.Window(w)
		return ledger.Add(w)
	})
	prober.OnFailure = people.Failure
	return prober.Run(ctx)
}
