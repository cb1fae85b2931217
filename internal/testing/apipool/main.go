// Command apipool boots API servers, runs a command that may use them (see apitest.Lazy), and stops
// them however the command ends:
//
//	apipool -plain 2 -full 1 -- go test ./...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/internal/testing/apitest"
)

func main() {
	plain := flag.Int("plain", 2, "API servers alone")
	full := flag.Int("full", 2, "API servers with a scheduler, controllers and Calico's definitions")
	flag.Parse()
	sorts := slices.Concat(slices.Repeat([]apitest.Sort{apitest.Full}, *full), slices.Repeat([]apitest.Sort{apitest.Plain}, *plain))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, sorts, flag.Args())
	stop()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, sorts []apitest.Sort, args []string) (err error) {
	if len(args) == 0 {
		return errors.New("no command to run")
	}
	// Processes that tests leave become children of this one, which ends them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	dir, err := os.MkdirTemp("", "apipool-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endOrphans(), os.RemoveAll(dir)) }()
	// Everything that is written beside tests goes with the directory.
	if err := errors.Join(os.Setenv("TMPDIR", dir), os.Setenv(apitest.PoolVariable, dir)); err != nil {
		return err
	}
	began := time.Now()
	pool, err := apitest.NewPool(ctx, dir, sorts...)
	defer func() { err = errors.Join(err, pool.Stop()) }()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d API servers are up after %s\n", len(sorts), time.Since(began).Round(time.Second))
	return command(ctx, args)
}

// command runs the command in a process group of its own, so that a signal reaches all of it once.
func command(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd.Run()
}
