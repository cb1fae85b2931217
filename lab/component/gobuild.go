package component

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// goBuild builds one static binary of the package pkg of the module at dir.
func goBuild(ctx context.Context, dir, out, pkg string, flags []string) error {
	return goCommand(ctx, dir, pkg, append([]string{"build", "-o", out}, flags...))
}

// goTestBuild builds one static binary of the tests of the package pkg of the module at dir.
func goTestBuild(ctx context.Context, dir, out, pkg string, flags []string) error {
	return goCommand(ctx, dir, pkg, append([]string{"test", "-c", "-o", out}, flags...))
}

func goCommand(ctx context.Context, dir, pkg string, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	output, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New(
			"the go command is not there, which labs are built with\nhint: install Go " + runtime.Version()[2:] + " or later: https://go.dev/dl",
		)
	}
	if err != nil {
		return fmt.Errorf("go %s %s: %w\n%s", args[0], pkg, err, lastLines(string(output), 15))
	}
	return nil
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
	return goBuild(ctx, filepath.Join(root, string(in)), out, pkg, []string{"-trimpath", "-ldflags", "-s -w", "-buildvcs=false"})
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
