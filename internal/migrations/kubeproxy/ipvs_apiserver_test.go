//go:build apiserver

package kubeproxy

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestOutOfIPVS leads nodes out of mode ipvs, cut off on the way, back from half of them, there and
// back from all, there again, and finishes while connections still go by what is left. Nothing is
// copied, and nothing is removed before finish.
func TestOutOfIPVS(t *testing.T) {
	f := setupMode(t, "ipvs", v1alpha1.KubeProxyIPTables)
	rollback := func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) }
	notes, waits := map[string]string{}, ""
	f.heard = func(e engine.Event) {
		notes[e.Step] += e.Note
		if strings.HasPrefix(e.Step, "unused/") && e.Kind == engine.StepWaiting {
			waits += e.Error + e.Guide
		}
	}
	for _, cut := range []string{"compare/a", "alone/a", "mark/switched/a", "there/b"} {
		f.run(cut, f.apply)
	}
	if want := "3 virtual servers of IPVS lead on node a"; !strings.Contains(notes["leave/a"], want) {
		t.Errorf("of node a is said %q, want %q", notes["leave/a"], want)
	}
	f.run("alone/a", rollback)
	f.run("", rollback)
	f.require("ipvs")

	f.run("", f.apply)
	f.require("iptables", v1alpha1.KubeProxyIPVS)
	f.run("", rollback)
	f.require("ipvs")
	f.run("", f.apply)

	f.Mu.Lock()
	f.nodes["b"].open = 2
	f.Mu.Unlock()
	finish := func(ctx context.Context) error { return f.job.Finish(ctx, f.runner) }
	f.run("remove/a", finish)
	f.run("", finish)
	f.require("iptables")
	for _, want := range []string{"node b: connections still go by it: 1 to 10.96.0.20:80 tcp, from 10.244.0.5", "kubectl rollout restart"} {
		if !strings.Contains(waits, want) {
			t.Errorf("finish waits for %q, want %q", waits, want)
		}
	}
}

// TestProgramsOutOfIPVS has an action restart programs that were in mode ipvs: there, back, there
// again, and finish.
func TestProgramsOutOfIPVS(t *testing.T) {
	orders := filepath.Join(t.TempDir(), "orders")
	f := begin(t, &v1alpha1.KubeProxySpec{
		Mode: v1alpha1.KubeProxyIPTables,
		Program: &v1alpha1.KubeProxyProgramSpec{From: v1alpha1.KubeProxyIPVS, Restart: &v1alpha1.Action{Exec: &v1alpha1.ExecAction{
			Command: []string{"/bin/sh", "-c", `echo "$REPLUMB_NODE $REPLUMB_MODE" >> "$0"`, orders},
		}}},
	}, v1alpha1.KubeProxyIPVS)
	programsOn(f, v1alpha1.KubeProxyIPVS)
	f.ordered = func(node string) v1alpha1.KubeProxyMode { return lastOrder(t, orders, node) }

	f.run("mark/switched/a", f.apply)
	f.run("", f.apply)
	f.requirePrograms(v1alpha1.KubeProxyIPTables, v1alpha1.ModeSwitched, v1alpha1.KubeProxyIPVS)
	f.run("", func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) })
	f.requirePrograms(v1alpha1.KubeProxyIPVS, "")
	f.run("", f.apply)
	f.run("", func(ctx context.Context) error { return f.job.Finish(ctx, f.runner) })
	f.requirePrograms(v1alpha1.KubeProxyIPTables, "")
}
