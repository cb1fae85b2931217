package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/internal/engine/fault"
)

// maxVerbosity is the last level at which no bodies, and no Secrets, are logged.
const maxVerbosity = 7

// Settings are flags of every command.
type Settings struct {
	verbosity int
	Quiet     bool
	timeout   time.Duration
}

// Declare adds the flags.
func (s *Settings) Declare(flags *pflag.FlagSet) {
	flags.IntVarP(&s.verbosity, "v", "v", 0,
		"log API calls on stderr, as kubectl does: 6 requests, 7 their headers too, never what is in them")
	flags.BoolVarP(&s.Quiet, "quiet", "q", false, "print results, warnings and errors, and neither progress nor hints")
	flags.DurationVar(&s.timeout, "timeout", 0, "end the whole command after this long, as Ctrl-C would (default never)")
}

// prepare refuses settings that cannot be meant, and sets the log level.
func (s *Settings) prepare() error {
	switch {
	case s.verbosity < 0 || s.verbosity > maxVerbosity:
		return &UsageError{
			Problem: fmt.Sprintf("-v is %d", s.verbosity),
			Hint:    "use 0 to 7: beyond that what is sent would be logged, and with it Secrets",
		}
	case s.timeout < 0:
		return &UsageError{
			Problem: fmt.Sprintf("--timeout is %s", s.timeout),
			Hint:    "write a duration such as 10m; without it there is no limit",
		}
	}
	return s.logLibraries()
}

// logLibraries has client-go and others log on stderr with -v alone: what they meet with is tried
// again, or is in the error that ends the command.
func (s *Settings) logLibraries() error {
	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	klog.SetOutput(io.Discard)
	ctrllog.SetLogger(klog.Background()) // else it says after a while that it has none
	others := io.Discard
	if s.verbosity > 0 {
		others = os.Stderr
	}
	log.SetOutput(others)                                                    // of net/http
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, others)) // of etcd's client
	return errors.Join(
		logging.Set("v", strconv.Itoa(s.verbosity)),
		logging.Set("logtostderr", strconv.FormatBool(s.verbosity > 0)),
		logging.Set("stderrthreshold", "FATAL"),
	)
}

// TimeoutError says that --timeout ended a command.
type TimeoutError struct {
	After time.Duration
	Err   error
}

func (e *TimeoutError) Error() string {
	text := fmt.Sprintf("ended by --timeout after %s", e.After)
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text
}

func (e *TimeoutError) Unwrap() error { return e.Err }

func (*TimeoutError) ExitCode() int { return fault.ExitInterrupted }

func (*TimeoutError) Advice() string {
	return "it is safe to run the same command again: it carries on; a longer --timeout lets it get further"
}

// Govern has every command below one go by the settings.
func (s *Settings) Govern(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		s.Govern(c)
	}
	run := cmd.RunE
	if run == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := s.prepare(); err != nil {
			return err
		}
		ctx, stop := s.limit(cmd.Context())
		defer stop()
		cmd.SetContext(ctx)
		return late(ctx, run(cmd, args))
	}
}

// limit cancels a context when the time is up: a deadline would cut the steps in hand off.
func (s *Settings) limit(ctx context.Context) (limited context.Context, stop func()) {
	if s.timeout == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.timeout, func() { cancel(&TimeoutError{After: s.timeout}) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// late names --timeout in the error of a command that it cancelled. An exit code of its own stays.
func late(ctx context.Context, err error) error {
	var timeout *TimeoutError
	if !errors.As(context.Cause(ctx), &timeout) || !cancelled(err) || errors.As(err, new(*TimeoutError)) {
		return err
	}
	if _, own := fault.ExitCode(err); own {
		return err
	}
	if err.Error() == context.Canceled.Error() {
		err = nil // which says nothing more
	}
	return &TimeoutError{After: timeout.After, Err: err}
}
