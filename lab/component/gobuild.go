package component

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// compilerFlags are those that decide how packages are compiled. The Makefile has the same in GOFLAGS, so that what replumb and components share is
// compiled once: nothing of it is linked with symbols for debuggers.
func compilerFlags() []string { return []string{"-trimpath", "-gcflags=all=-dwarf=false"} }

// thrifty has compilers and linkers, which live briefly, collect no garbage until they have much, unless the user has chosen otherwise.
func thrifty(env []string) []string {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return env
	}
	return append(env, "GOGC=off", "GOMEMLIMIT=1GiB")
}

// goBuild builds static binaries of packages of the module at dir, and returns the processor time that it took. Out is a file, or a folder if it ends
// in a separator.
func goBuild(ctx context.Context, dir, out string, pkgs, flags []string, started func(pid int)) (time.Duration, error) {
	return goCommand(ctx, dir, append(append([]string{"build", "-o", out}, flags...), pkgs...), started)
}

// goTestBuild builds one static binary of the tests of the package pkg of the module at dir.
func goTestBuild(ctx context.Context, dir, out, pkg string, flags []string, started func(pid int)) (time.Duration, error) {
	return goCommand(ctx, dir, append(append([]string{"test", "-c", "-o", out}, flags...), pkg), started)
}

func goCommand(ctx context.Context, dir string, args []string, started func(pid int)) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(thrifty(os.Environ()), "CGO_ENABLED=0", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return 0, errors.New(
			"the go command is not there, which labs are built with\nhint: install Go " + runtime.Version()[2:] + " or later: https://go.dev/dl",
		)
	}
	if err != nil {
		return 0, err
	}
	started(cmd.Process.Pid)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("go %s %s: %w\n%s", args[0], args[len(args)-1], err, lastLines(output.String(), 15))
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// Module is one of the Go modules of a checkout, as its folder from the checkout's root.
type Module string

// The modules whose main packages labs run.
const (
	Product Module = "."
	Lab     Module = "lab"
)

// BuildMain builds a main package of one of replumb's own modules into out. It leaves caching to the go command,
// which finds out by itself whether anything has changed.
func BuildMain(ctx context.Context, in Module, pkg, out string) error {
	root, err := sources()
	if err != nil {
		return err
	}
	flags := append(compilerFlags(), "-ldflags", "-s -w", "-buildvcs=false")
	_, err = goBuild(ctx, filepath.Join(root, string(in)), out, []string{pkg}, flags, func(int) {})
	return err
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
