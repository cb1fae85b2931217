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

	"github.com/replumb/replumb/lab"
	"github.com/replumb/replumb/lab/component"
)

// The names of the labs that tests share; a run that was killed may have left them.
const (
	sharedName = "e2e"
	haName     = "e2e-ha"
	calicoName = "e2e-calico"
	crossName  = "e2e-calico-cross"
	vpcName    = "e2e-vpc"
	proofName  = "e2e-proof"
)

func TestMain(m *testing.M) {
	lab.RunMachineIfAsked()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx := context.Background()
	down := func() {
		for _, name := range []string{sharedName, haName, calicoName, crossName, vpcName, proofName} {
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
	return must(t, sharedLab)
}

func sharedLab() (*lab.Lab, error) {
	topology := lab.Default()
	topology.Name = sharedName
	return labs.only(topology)
}

// highlyAvailable returns the cluster with three control planes, whose API servers can be restarted one by one.
func highlyAvailable(t *testing.T) *lab.Lab {
	t.Helper()
	return must(t, haLab)
}

func haLab() (*lab.Lab, error) {
	topology := lab.Default()
	topology.Name, topology.ControlPlanes = haName, 3
	return labs.only(topology)
}

// withCalico returns the cluster whose pods get their network from Calico.
func withCalico(t *testing.T) *lab.Lab {
	t.Helper()
	return must(t, func() (*lab.Lab, error) { return calicoLab(calicoName, lab.Calico) })
}

func calicoLab(name string, cni lab.CNI) (*lab.Lab, error) {
	topology := lab.Default()
	topology.Name, topology.CNI = name, cni
	return labs.only(topology)
}

func must(t *testing.T, get func() (*lab.Lab, error)) *lab.Lab {
	t.Helper()
	l, err := get()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sharedLabs are up one at a time: clients of several would be more than two cores serve in time.
type sharedLabs struct {
	mu     sync.Mutex
	up     *lab.Lab
	failed map[string]error
}

var labs = &sharedLabs{failed: map[string]error{}}

// only returns the lab of that name, brought up in place of any other. One that did not come up is not tried again.
func (s *sharedLabs) only(topology lab.Topology) (*lab.Lab, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := topology.Name
	if err := s.failed[name]; err != nil {
		return nil, err
	}
	if s.up != nil && s.up.Topology.Name == name {
		return s.up, nil
	}
	if s.up != nil {
		if _, err := lab.Down(context.Background(), s.up.Topology.Name); err != nil {
			return nil, err
		}
		s.up = nil
	}
	l, err := lab.Up(context.Background(), topology, lab.Options{Progress: func(format string, args ...any) {
		fmt.Printf("    lab %s: %s\n", name, fmt.Sprintf(format, args...))
	}})
	s.up, s.failed[name] = l, err
	return l, err
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
