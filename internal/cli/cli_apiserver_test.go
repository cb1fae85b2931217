//go:build apiserver

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// serial keeps scripts from running beside each other: they share one cluster.
type serial struct{ *testing.T }

func (serial) Parallel() {}

func (s serial) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serial{t}) })
}

func (serial) Verbose() bool { return testing.Verbose() }

// TestCluster runs the scripts against a real API server.
func TestCluster(t *testing.T) { inCluster(t, "testdata/cluster") }

// TestOperator runs those in which an operator runs as well.
func TestOperator(t *testing.T) { inCluster(t, "testdata/operator") }

func inCluster(t *testing.T, dir string) {
	t.Helper()
	server := plain.Get(t)
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(serial{t}, testscript.Params{
		Dir: dir, UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
			server.Clean(t)
			server.Namespace(t, "shop")
			for name, from := range map[string]string{
				"rbac.yaml": "../../deploy/rbac.yaml", "nodereports.yaml": "../../deploy/crds/replumb.dev_nodereports.yaml",
				"crds.yaml": "../../deploy/crds/replumb.dev_migrations.yaml", "operator.yaml": "../../examples/service-cidr/operator.yaml",
			} {
				if err := copyFile(filepath.Join(env.WorkDir, name), from); err != nil {
					return err
				}
			}
			env.Setenv("KUBECONFIG", server.Kubeconfig)
			env.Setenv("SERVER", server.Config.Host)
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			return nil
		},
		Cmds: ownCommands(),
	})
}

// ownCommands are those that scripts have beside programs.
func ownCommands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){"refused": refused, "alike": alike}
}

// refused runs a command that must fail until its stderr has a pattern: an API server hears of a
// change to a policy's parameters some time after the one who made it, and refuses with the older
// words until then.
func refused(ts *testscript.TestScript, _ bool, args []string) {
	words := regexp.MustCompile(args[0])
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if ts.Exec(args[1], args[2:]...) == nil {
			ts.Fatalf("%v was accepted", args[1:])
		}
		if words.MatchString(ts.ReadFile("stderr")) {
			return
		}
	}
	ts.Fatalf("no %q in %s", args[0], ts.ReadFile("stderr"))
}

func copyFile(to, from string) error {
	body, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, body, 0o600)
}
