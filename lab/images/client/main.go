// Command client is the calling half of the lab's traffic: it probes the targets of its configuration and writes one
// JSON line per target and second to standard output, where the pod's log carries it to what counts. Nothing else
// is written there; an error ends the program with a line that is not JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/replumb/replumb/internal/verify/probe"
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func start() error {
	file := flag.String("config", "", "file with the probe configuration; without it the variable CLIENT_CONFIG is read")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return run(ctx, *file, os.Stdout)
}

func run(ctx context.Context, file string, out io.Writer) error {
	data, err := readConfig(file)
	if err != nil {
		return err
	}
	config, err := probe.ParseConfig(data)
	if err != nil {
		return err
	}
	if config, err = config.Resolve(os.Getenv("POD_IPS")); err != nil {
		return err
	}
	return probe.New(config, lineWriter(out)).Run(ctx)
}

func readConfig(file string) ([]byte, error) {
	if file != "" {
		return os.ReadFile(file)
	}
	if text := os.Getenv("CLIENT_CONFIG"); text != "" {
		return []byte(text), nil
	}
	return nil, errors.New("no configuration: set CLIENT_CONFIG or name a file with -config")
}

// lineWriter writes each window as one line in one write, so that lines never mix or arrive in halves.
func lineWriter(out io.Writer) func(probe.Interval) error {
	buffered := bufio.NewWriterSize(out, 16<<10)
	encoder := json.NewEncoder(buffered)
	return func(w probe.Interval) error {
		if err := encoder.Encode(w); err != nil {
			return fmt.Errorf("write window: %w", err)
		}
		return buffered.Flush()
	}
}
