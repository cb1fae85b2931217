// Package e2e tests what replumb promises with real packets, on clusters of the lab. It needs root.
//
// Tests that only need some cluster share one, which the first of them brings up.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/lab"
	"github.com/replumb/replumb/internal/lab/component"
)

// sharedName and haName are the names of the labs that tests share; a run that was killed may have left them.
const (
	sharedName = "e2e"
	haName     = "e2e-ha"
)

func TestMain(m *testing.M) {
	lab.RunMachineIfAsked()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	down := func() {
		for _, name := range []string{sharedName, haName} {
			if _, err := lab.Down(ctx, name); err != nil {
				fmt.Fprintf(os.Stderr, "taking lab %s down: %v\n", name, err)
			}
		}
	}
	down()
	defer down()
	return m.Run()
}

// shared returns the cluster that tests share: two nodes, one of each proxy mode.
func shared(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := sharedOnce()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var sharedOnce = sync.OnceValues(func() (*lab.Lab, error) { return up(sharedName, 1) })

// highlyAvailable returns the cluster with three control planes, whose API servers can be restarted one by one.
func highlyAvailable(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := haOnce()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// haOnce takes the other lab down first: clients of both would be more than two cores serve in time.
var haOnce = sync.OnceValues(func() (*lab.Lab, error) {
	if _, err := lab.Down(context.Background(), sharedName); err != nil {
		return nil, err
	}
	return up(haName, 3)
})

func up(name string, controlPlanes int) (*lab.Lab, error) {
	topology := lab.Default()
	topology.Name, topology.ControlPlanes = name, controlPlanes
	return lab.Up(context.Background(), topology, lab.Options{Progress: func(format string, args ...any) {
		fmt.Printf("    lab %s: %s\n", name, fmt.Sprintf(format, args...))
	}})
}

// binaries builds replumb and replumb-lab once and returns their folder.
func binaries(t *testing.T) string {
	t.Helper()
	dir, err := binariesOnce()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var binariesOnce = sync.OnceValues(func() (string, error) {
	root, err := component.SourceRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "build", "e2e")
	for _, name := range []string{"replumb", "replumb-lab"} {
		if err := component.BuildMain(context.Background(), "./cmd/"+name, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
})

// command prepares a command of ours that is killed when the test ends.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), filepath.Join(binaries(t), name), args...)
}

// eventually calls condition until it succeeds, and fails the test with its last error when that takes too long.
func eventually(t *testing.T, within time.Duration, condition func() error) {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("still not so after %s: %v", within, err)
		case <-tick.C:
		}
	}
}
