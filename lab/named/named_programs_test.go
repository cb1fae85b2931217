//go:build programs && long

package named

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestNamedTakesIt asks BIND itself, where there is one.
func TestNamedTakesIt(t *testing.T) {
	if _, err := exec.LookPath("named-checkconf"); err != nil {
		t.Fatal("BIND is not installed: make deps")
	}
	dir := t.TempDir()
	all := append(files(t, dir), txtar.File{Name: "lab.key", Data: NewKey()})
	for _, f := range all {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// With -z it loads the zones too.
	if out, err := exec.Command("named-checkconf", "-z", filepath.Join(dir, "named.conf")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
