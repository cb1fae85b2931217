// Command bench-probe measures the prober, as `replumb probe` runs it, against a server that is a process of its own: what it loses when
// nothing is lost, how long it finds a freeze of the server to be, and what it takes of the machine. It prints a table in Markdown. Run it by
// `make bench-probe`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

type options struct {
	replumb     string
	idle, load  time.Duration
	freezes     int
	freeze      time.Duration
	rate, spare float64
}

func main() {
	var o options
	serve := flag.Bool("serve", false, "be the server (the benchmark calls itself)")
	flag.StringVar(&o.replumb, "replumb", "bin/replumb", "the binary to measure")
	flag.DurationVar(&o.idle, "idle", 10*time.Minute, "how long to probe what loses nothing; 0 leaves it out")
	flag.DurationVar(&o.load, "load", time.Minute, "how long to measure processor and memory; 0 leaves it out")
	flag.IntVar(&o.freezes, "freezes", 20, "how often to freeze the server; 0 leaves it out")
	flag.DurationVar(&o.freeze, "freeze", 100*time.Millisecond, "how long to freeze it")
	flag.Float64Var(&o.rate, "freeze-rate", 500, "requests a second to a server that freezes")
	flag.Float64Var(&o.spare, "rate", 100, "requests a second otherwise")
	flag.Parse()
	if err := o.start(*serve); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func (o options) start(serve bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if serve {
		return serveUntil(ctx, os.Stdin, os.Stdout)
	}
	return o.run(ctx)
}

func (o options) run(ctx context.Context) error {
	fmt.Printf("load average at the beginning: %s\n\n| measured | result |\n|---|---|\n", load())
	for _, m := range []struct {
		wanted bool
		do     func(context.Context) error
	}{{o.freezes > 0, o.measureFreezes}, {o.load > 0, o.measureLoad}, {o.idle > 0, o.measureIdle}} {
		if !m.wanted {
			continue
		}
		if err := m.do(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("\nload average at the end: %s\n", load())
	return nil
}

func row(what, result string, args ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(result, args...))
}

// load is the load average of 1, 5 and 15 minutes.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], ", ")
}
