//go:build root

package cgroup

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestDestroy ends a process that has put a child of its own in a group further down.
func TestDestroy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("making control groups takes root: run this with make test-root, as root")
	}
	tree, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	const group = "/replumb-cgroup-test"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tree.Create(group + "/inner/leaf"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = tree.Destroy(context.Background(), group) })
	if err := tree.Join(group+"/inner/leaf", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := tree.Destroy(ctx, group); err != nil {
		t.Fatal(err)
	}
	if tree.Exists(group) {
		t.Error("the group is still there")
	}
	select {
	case err := <-ended:
		t.Logf("the process ended: %v", err)
	case <-ctx.Done():
		t.Error("the process still runs")
	}
	if err := tree.Destroy(ctx, group); err != nil {
		t.Errorf("destroying what is not there: %v", err)
	}
}
