//go:build apiserver && long

package kubeproxy

import (
	"context"
	"testing"
)

// TestModeChangedAndBack goes there, cut off on the way, back from half of the nodes, there, back
// and there again, and finishes. At no step a node is without rules, and no configuration changes
// under a pod that reads it.
func TestModeChangedAndBack(t *testing.T) {
	f := setup(t)
	rollback := func(ctx context.Context) error { return f.job.Rollback(ctx, f.runner) }
	for _, cut := range []string{"compare/a", "services/a", "mark/switched/a"} {
		f.run(cut, f.apply)
	}
	f.run("there/b", f.apply)
	f.run("mark/none/a", rollback)
	f.run("", rollback)
	f.require(`""`)

	for _, cut := range []string{"configure/kube-system/kube-proxy", "left/a"} {
		f.run(cut, f.apply)
	}
	f.run("", rollback) // which gives nodes back first
	f.require(`""`)

	f.run("", f.apply)
	f.require("nftables")
	f.run("", rollback)
	f.require(`""`)
	f.run("", f.apply)
	f.run("", func(ctx context.Context) error { return f.job.Finish(ctx, f.runner) })
	f.require("nftables")
}
