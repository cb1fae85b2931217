package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
)

// TestUpKilled kills `replumb-lab up` at several moments, or at one if time is short. Whatever is there then, `down` must take it away.
func TestUpKilled(t *testing.T) {
	const name = "killed"
	moments := []string{"starting 4 machines", "starting the control plane", "API server is ready", "nodes are Ready"}
	if testing.Short() {
		moments = moments[2:3]
	}
	for _, moment := range moments {
		t.Run(moment, func(t *testing.T) {
			before := labtest.HostState(t)
			up := command(t, "replumb-lab", "up", "--name", name)
			stderr, err := up.StderrPipe()
			must(t, err)
			t.Cleanup(func() { _, _ = lab.Down(context.Background(), name) })
			must(t, up.Start())
			waitForLine(t, bufio.NewScanner(stderr), moment)
			must(t, up.Process.Signal(unix.SIGKILL))
			_ = up.Wait()

			// The control: without `down` there is something to find, or the check finds nothing ever.
			if len(labtest.Leftovers(t, name)) == 0 {
				t.Fatal("nothing of the lab was there after the kill; the check proves nothing")
			}
			if out, err := command(t, "replumb-lab", "down", "--name", name).CombinedOutput(); err != nil {
				t.Fatalf("down: %v: %s", err, out)
			}
			labtest.RequireNothingLeft(t, name)
			labtest.RequireUnchanged(t, before)
		})
	}
}

func waitForLine(t *testing.T, s *bufio.Scanner, part string) {
	t.Helper()
	var seen []string
	for s.Scan() {
		seen = append(seen, s.Text())
		if strings.Contains(s.Text(), part) {
			return
		}
	}
	t.Fatalf("no line with %q in:\n%s", part, strings.Join(seen, "\n"))
}

// TestUpInterrupted ends the context in the middle: Up itself must clean up.
func TestUpInterrupted(t *testing.T) {
	const name = "interrupted"
	before := labtest.HostState(t)
	topology := lab.Default()
	topology.Name = name
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := lab.Up(ctx, topology, lab.Options{Progress: func(format string, _ ...any) {
		if strings.HasPrefix(format, "API server is ready") {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Up returned %v, not that it was cancelled", err)
	}
	labtest.RequireNothingLeft(t, name)
	labtest.RequireUnchanged(t, before)
}

// TestTwoLabs runs a second lab with the very same addresses beside a first one.
func TestTwoLabs(t *testing.T) {
	first := bringUp(t, named("first"))
	topology := lab.Default()
	topology.Name = "second"
	topology.Nodes = []lab.ProxyMode{lab.NFTables}
	t.Cleanup(func() { _, _ = lab.Down(context.Background(), topology.Name) })
	second, err := lab.Up(t.Context(), topology, lab.Options{})
	must(t, err)
	if got := nodesOf(t, second); got != "node1" {
		t.Errorf("the second lab has nodes %q, not its own one", got)
	}
	if got := nodesOf(t, first); got != "node1 node2" {
		t.Errorf("the first lab has nodes %q while the second runs, not its own two", got)
	}

	_, err = lab.Up(t.Context(), topology, lab.Options{})
	if inUse := (*lab.InUseError)(nil); !errors.As(err, &inUse) {
		t.Errorf("a third lab of the second's name: %v, not that the name is in use", err)
	}
	if _, err := lab.Down(t.Context(), topology.Name); err != nil {
		t.Fatal(err)
	}
	labtest.RequireNothingLeft(t, topology.Name)
	if got := nodesOf(t, first); got != "node1 node2" {
		t.Errorf("the first lab has nodes %q after the second went", got)
	}
}

func nodesOf(t *testing.T, l *lab.Lab) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), l.Kubectl(), "--kubeconfig", l.Kubeconfig(),
		"get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	out, err := cmd.Output()
	must(t, err)
	return string(out)
}

// testSupervisor kills a node's kube-proxy and sees it come back.
func testSupervisor(t *testing.T, l *lab.Lab) {
	m, err := l.Machine("node1")
	must(t, err)
	pid := func() (int, error) {
		info, err := m.Info(t.Context())
		if err != nil {
			return 0, err
		}
		for _, p := range info.Programs {
			if p.Name == "kube-proxy" && p.PID != 0 {
				return p.PID, nil
			}
		}
		return 0, errors.New("kube-proxy does not run")
	}
	before, err := pid()
	must(t, err)
	must(t, unix.Kill(before, unix.SIGKILL))
	eventually(t, time.Minute, func() error {
		after, err := pid()
		if err == nil && after == before {
			err = fmt.Errorf("it is still process %d", before)
		}
		return err
	})
}

// testLabRefusals gives `replumb-lab` what it cannot do: one line that says what and what to do, and nothing changed.
func testLabRefusals(t *testing.T, l *lab.Lab) {
	taken := l.Topology.Name
	tests := []struct {
		name string
		args []string
		exit int
		say  string
	}{
		{
			"overlap",
			[]string{"up", "--name", "bad", "--pod-cidr", "10.96.0.0/12"},
			2,
			"pod-cidr: 10.96.0.0/12 overlaps service-cidr 10.96.0.0/16",
		},
		{"host bits", []string{"up", "--name", "bad", "--service-cidr", "10.96.0.5/16"}, 2, "has host bits set"},
		{"not a range", []string{"up", "--name", "bad", "--pod-cidr", "pods"}, 2, `pod-cidr: "pods" is not a range`},
		{"proxy mode", []string{"up", "--name", "bad", "--proxy", "ipvs"}, 2, `proxy: "ipvs" is not a proxy mode`},
		{
			"networks that flannel does not cross",
			[]string{"up", "--name", "bad", "--cni", "flannel", "--networks", "a=172.30.0.0/24,b=172.31.0.0/24"},
			2,
			"cannot reach each other with flannel",
		},
		{"bad name", []string{"up", "--name", "No_Good"}, 2, `name: "No_Good" is not a valid lab name`},
		{"name in use", []string{"up", "--name", taken}, 1, `a lab called "` + taken + `" exists already`},
		{"unknown flag", []string{"up", "--name", "bad", "--nods", "3"}, 2, "unknown flag: --nods"},
		{"no such lab", []string{"status", "--name", "nowhere"}, 1, `no lab is called "nowhere"`},
		{"no such machine", []string{"exec", "--name", taken, "-n", "kube-system", "nowhere", "--", "true"}, 1, "not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := command(t, "replumb-lab", tt.args...)
			cmd.Stderr = &stderr
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != tt.exit {
				t.Errorf("ended with %v, want exit code %d", err, tt.exit)
			}
			if !strings.Contains(stderr.String(), tt.say) {
				t.Errorf("said %q, not %q", stderr.String(), tt.say)
			}
			if tt.name != "no such machine" && !strings.Contains(stderr.String(), "\nhint: ") {
				t.Errorf("gave no hint: %q", stderr.String())
			}
			labtest.RequireNothingLeft(t, "bad")
		})
	}
}

// TestUpElsewhere brings a lab up in a folder outside the checkout, by nothing but the program that make build makes. The control is a program
// that carries no sources.
func TestUpElsewhere(t *testing.T) {
	const name = "elsewhere"
	folder := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "make", "-C", checkout(t), "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	program := filepath.Join(folder, "replumb-lab")
	content, err := os.ReadFile(filepath.Join(checkout(t), "bin", "replumb-lab"))
	must(t, err)
	must(t, os.WriteFile(program, content, 0o755))
	t.Cleanup(func() { _, _ = lab.Down(context.Background(), name) })
	for _, argv := range [][]string{
		{program, "up", "--name", name, "--nodes", "1"}, {program, "exec", "--name", name, "node1", "--", "true"}, {program, "down", "--name", name},
	} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", argv[1], err, out)
		}
	}
	labtest.RequireNothingLeft(t, name)

	bare := command(t, "replumb-lab", "up", "--name", name)
	bare.Dir = folder
	if out, err := bare.CombinedOutput(); err == nil || !strings.Contains(string(out), "hint: change into the checkout first") {
		t.Errorf("control: without sources up ends with %v: %s", err, out)
	}
}
