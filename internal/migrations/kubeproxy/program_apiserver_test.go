//go:build apiserver

package kubeproxy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// restart has the kube-proxy of a node, if it is a program, start in the mode that its owner has
// set: it removes the rules of the other mode first.
func (f *fixture) restart(node string) {
	if f.ordered == nil {
		return
	}
	if mode := f.ordered(node); mode != "" && mode != f.programs[node] {
		delete(f.nodes[node].modes, other(mode))
		f.programs[node] = mode
	}
}

func programsOn(f *fixture, mode v1alpha1.KubeProxyMode) {
	f.programs = map[string]v1alpha1.KubeProxyMode{}
	for name := range f.nodes {
		f.programs[name] = mode
	}
}

// requirePrograms: nodes have rules of one mode and no copy, and marks are as they should be.
func (f *fixture) requirePrograms(mode v1alpha1.KubeProxyMode, mark string, left ...v1alpha1.KubeProxyMode) {
	f.Helper()
	nodes := &corev1.NodeList{}
	f.Must(server.List(f.Context(), nodes))
	for i := range nodes.Items {
		if have := nodes.Items[i].Labels[v1alpha1.LabelKubeProxyMode]; have != mark {
			f.Errorf("node %s is marked %q, want %q", nodes.Items[i].Name, have, mark)
		}
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for name, n := range f.nodes {
		if n.copied || len(n.modes) != 1+len(left) || !n.modes[mode] {
			f.Errorf("node %s has %+v, want mode %s", name, *n, mode)
		}
	}
}

// TestPersonRestarts has a person restart programs at gates, once told that they have another mode.
// Cut off on the way, half of the nodes go back.
func TestPersonRestarts(t *testing.T) {
	f := begin(t, &v1alpha1.KubeProxySpec{
		Mode: v1alpha1.KubeProxyNFTables, Program: &v1alpha1.KubeProxyProgramSpec{GateWait: &metav1.Duration{Duration: time.Minute}},
	}, v1alpha1.KubeProxyIPTables)
	programsOn(f, v1alpha1.KubeProxyIPTables)
	asked := map[string]v1alpha1.KubeProxyMode{} // what the person has done, by node
	to, guide, told := v1alpha1.KubeProxyNFTables, "", ""
	f.ordered = func(node string) v1alpha1.KubeProxyMode { return asked[node] }
	f.heard = func(e engine.Event) {
		node, at := strings.CutPrefix(e.Step, "compare/")
		if !at || e.Kind != engine.StepWaiting {
			return
		}
		guide += e.Guide
		if strings.Contains(e.Error, "says that it has mode") {
			told += e.Error + "\n"
			asked[node] = to
		}
	}
	f.run("clean/a", f.apply)
	if want := "kube-proxy on node a says that it has mode iptables, not nftables"; !strings.Contains(told, want) || !strings.Contains(guide, "node a") {
		t.Errorf("the person was told %q and %q, want %q", guide, told, want)
	}
	f.run("mark/switched/a", f.apply)
	f.run("compare/b", f.apply)

	to = v1alpha1.KubeProxyIPTables
	f.run("", func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) })
	f.requirePrograms(v1alpha1.KubeProxyIPTables, "")
}

// TestActionRestarts has an action restart programs: there, with a node that was restarted before
// its turn, back, there again, and finish.
func TestActionRestarts(t *testing.T) {
	orders := filepath.Join(t.TempDir(), "orders")
	f := begin(t, &v1alpha1.KubeProxySpec{
		Mode: v1alpha1.KubeProxyNFTables,
		Program: &v1alpha1.KubeProxyProgramSpec{Restart: &v1alpha1.Action{Exec: &v1alpha1.ExecAction{
			Command: []string{"/bin/sh", "-c", `echo "$REPLUMB_NODE $REPLUMB_MODE" >> "$0"`, orders},
		}}},
	}, v1alpha1.KubeProxyIPTables)
	programsOn(f, v1alpha1.KubeProxyIPTables)
	f.ordered = func(node string) v1alpha1.KubeProxyMode { return lastOrder(t, orders, node) }
	f.Mu.Lock()
	f.programs["b"], f.nodes["b"].modes = v1alpha1.KubeProxyNFTables, map[v1alpha1.KubeProxyMode]bool{v1alpha1.KubeProxyNFTables: true}
	f.Mu.Unlock()
	notes := map[string]string{}
	f.heard = func(e engine.Event) { notes[e.Step] += e.Note }

	f.run("", f.apply)
	f.requirePrograms(v1alpha1.KubeProxyNFTables, v1alpha1.ModeSwitched)
	if note := notes["copy/b"]; !strings.Contains(note, "restarted before its turn") || notes["copy/a"] != "" {
		t.Errorf("of nodes a and b is said: %q, %q", notes["copy/a"], note)
	}
	f.run("", func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) })
	f.requirePrograms(v1alpha1.KubeProxyIPTables, "")
	f.run("", f.apply)
	f.run("", func(ctx context.Context) error { return f.job.Finish(ctx, f.runner) })
	f.requirePrograms(v1alpha1.KubeProxyNFTables, "")
}

// lastOrder is the mode that the action was called with last for a node.
func lastOrder(t *testing.T, file, node string) (mode v1alpha1.KubeProxyMode) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for line := range strings.Lines(string(body)) {
		if name, to, _ := strings.Cut(strings.TrimSpace(line), " "); name == node {
			mode = v1alpha1.KubeProxyMode(to)
		}
	}
	return mode
}
