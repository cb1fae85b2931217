package replumb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// depsRun runs hack/deps.sh as on a machine that lacks packages, with an apt-get that is a line of shell, and a policy of its own.
func depsRun(t *testing.T, policy, aptGet string, args ...string) string {
	t.Helper()
	bin := t.TempDir()
	for _, tool := range []string{"bash", "chmod", "rm", "sed", "kill", "cat"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	for name, line := range map[string]string{"id": "echo 0", "apt-get": aptGet} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!"+filepath.Join(bin, "bash")+"\n"+line+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bash"), append([]string{"hack/deps.sh"}, args...)...)
	cmd.Env = []string{"PATH=" + bin, "POLICY_RC_D=" + policy}
	out, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// TestNoPolicyIsLeft: a policy-rc.d that a run leaves behind has the host start no service for good.
func TestNoPolicyIsLeft(t *testing.T) {
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	const foreign = "#!/bin/sh\nexit 101\n"
	for name, aptGet := range map[string]string{
		"ended": `cat "$POLICY_RC_D"`, "failed": `cat "$POLICY_RC_D"; exit 1`, "interrupted": `cat "$POLICY_RC_D"; kill -INT $PPID`,
		"terminated": `cat "$POLICY_RC_D"; kill -TERM $PPID`, "hung up": `cat "$POLICY_RC_D"; kill -HUP $PPID`,
	} {
		t.Run(name, func(t *testing.T) {
			policy := filepath.Join(t.TempDir(), "policy-rc.d")
			if out := depsRun(t, policy, aptGet); exists(policy) || !strings.Contains(out, "exit 101") {
				t.Errorf("left %t: %s", exists(policy), out)
			}
		})
	}
	t.Run("killed", func(t *testing.T) {
		policy := filepath.Join(t.TempDir(), "policy-rc.d")
		if out := depsRun(t, policy, "kill -KILL $PPID"); !exists(policy) {
			t.Fatalf("nothing left, so that there is nothing to see: %s", out)
		}
		if out := depsRun(t, policy, ":"); exists(policy) {
			t.Errorf("still there after the next run: %s", out)
		}
	})
	t.Run("someone else's", func(t *testing.T) {
		policy := filepath.Join(t.TempDir(), "policy-rc.d")
		if err := os.WriteFile(policy, []byte(foreign), 0o600); err != nil {
			t.Fatal(err)
		}
		out := depsRun(t, policy, ":")
		if body, err := os.ReadFile(policy); err != nil || string(body) != foreign {
			t.Errorf("%q, %v: %s", body, err, out)
		}
	})
}

// TestLabsNeedLess: the demo does not install what tests alone need.
func TestLabsNeedLess(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	all, lab := depsRun(t, policy, ":"), depsRun(t, policy, ":", "--lab")
	if !strings.Contains(all, "util-linux") || !strings.Contains(lab, "util-linux") {
		t.Errorf("what labs run is not installed: %s, and with --lab %s", all, lab)
	}
	for _, name := range []string{"chromium", "jq", "curl", "gcc", "libc6-dev"} {
		if strings.Contains(lab, name) || name != "libc6-dev" && !strings.Contains(all, name) {
			t.Errorf("%s is not for tests alone: %s, and with --lab %s", name, all, lab)
		}
	}
}
