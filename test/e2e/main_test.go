// Package e2e tests what replumb promises with real packets, on clusters of the lab. It needs root.
//
// Tests that need the same lab are subtests of one test, which brings it up and takes it down: topologies_test.go has them, in the order in
// which they run. Those that need one of their own stand alone.
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

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
)

func TestMain(m *testing.M) {
	lab.RunMachineIfAsked()
	os.Exit(m.Run())
}

// bringUp brings a lab up for a test and its subtests, and takes it down when they have ended. One that a killed run has left goes first.
func bringUp(t *testing.T, topology lab.Topology) *lab.Lab {
	t.Helper()
	down := func() {
		if _, err := lab.Down(context.Background(), topology.Name); err != nil {
			t.Errorf("taking lab %s down: %v", topology.Name, err)
		}
	}
	down()
	t.Cleanup(down)
	l, err := lab.Up(t.Context(), topology, lab.Options{Progress: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// named is the default topology under another name: two nodes, one of each proxy mode.
func named(name string) lab.Topology {
	topology := lab.Default()
	topology.Name = name
	return topology
}

// highlyAvailable has three control planes, whose API servers can be restarted one by one.
func highlyAvailable(name string) lab.Topology {
	topology := named(name)
	topology.ControlPlanes = 3
	return topology
}

// withCalico has a network of pods by Calico, with tunnels.
func withCalico(name string) lab.Topology {
	topology := named(name)
	topology.CNI = lab.Calico
	return topology
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
	for name, module := range map[string]component.Module{"replumb": component.Product, "replumb-lab": component.Lab} {
		if err := component.BuildMain(context.Background(), module, "./cmd/"+name, filepath.Join(dir, name)); err != nil {
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeSpec writes a Migration of a name with what its spec has, and returns the file.
func writeSpec(t *testing.T, name, spec string, args ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".yaml")
	head := "apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: " + name + "}\nspec:"
	if err := os.WriteFile(file, []byte(head+fmt.Sprintf(spec, args...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// rewrite changes what is in a file.
func rewrite(t *testing.T, file string, change func(text string) string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(change(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
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
