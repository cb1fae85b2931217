//go:build programs && long

package haproxy

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestHAProxyTakesIt asks the program itself, where there is one.
func TestHAProxyTakesIt(t *testing.T) {
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Fatal("haproxy is not installed: make deps")
	}
	dir := t.TempDir()
	files := configs(t, dir)
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name := range files {
		if filepath.Ext(name) != ".cfg" {
			continue
		}
		if out, err := exec.Command("haproxy", "-c", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
