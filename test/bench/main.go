// Command bench measures what docs/design/measurements.md records: bench NAME [-flag]... Run it by `make bench RUN=NAME`.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/lab/lab"
)

// benchmark declares its flags, and measures once they are read.
type benchmark func(flags *flag.FlagSet) (measure func(context.Context) error)

func benchmarks() map[string]benchmark {
	return map[string]benchmark{
		"lab": ofLab, "services": ofServices, "pods": ofPods, "nodes": ofNodes, "mirror": ofMirror, "moves": ofMoves, "probe": ofProbe,
		serveCommand: ofServer,
	}
}

func main() {
	lab.RunMachineIfAsked()
	log.SetLogger(logr.Discard()) // it would warn that nothing reads it
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	all := benchmarks()
	if len(args) == 0 || all[args[0]] == nil {
		return fmt.Errorf("name what to measure, of %v", slices.Sorted(maps.Keys(all)))
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	measure := all[args[0]](flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	return measure(ctx)
}
