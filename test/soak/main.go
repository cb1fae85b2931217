// Command soak has a cluster of the lab live through a long time of work and trouble while its Service range is moved there, back, there
// again, and for good: users create, delete, switch, scale and edit Services at random, nodes restart, API servers are replaced, and
// replumb is killed. Clients count what is lost; an audit compares every object with a model of what users want. Run it by
// `make e2e RUN=soak`, as root. A run that fails prints its seed, by which users and trouble do the same again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/replumb/replumb/lab/lab"
)

func main() {
	lab.RunMachineIfAsked()
	length := flag.Duration("length", time.Hour, "how long it goes on for: the control a sixth of it, and at least one whole cycle")
	seed := flag.Uint64("seed", 0, "what users do and what goes wrong is drawn from; 0 draws one")
	bin := flag.String("bin", "bin", "folder of replumb")
	keep := flag.Bool("keep", false, "leave the lab as it is when the run fails")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	if err := start(context.Background(), *seed, *length, *bin, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// start brings a lab up and takes it down again.
func start(ctx context.Context, seed uint64, length time.Duration, bin string, keep bool) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if _, err := lab.Down(ctx, labName); err != nil { // what a killed run has left
		return err
	}
	topology := lab.Default()
	topology.Name, topology.ControlPlanes = labName, 3
	l, err := lab.Up(ctx, topology, lab.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && keep {
			return
		}
		_, downErr := lab.Down(context.WithoutCancel(ctx), labName)
		err = errors.Join(err, downErr)
	}()
	dir, err := os.MkdirTemp("", "soak-")
	if err != nil {
		return err
	}
	s, err := newSoak(l, seed, length, bin, dir, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	s.say("seed %d, for %s", seed, length)
	err = s.soak(ctx)
	s.result(err)
	return err
}
