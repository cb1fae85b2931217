//go:build apiserver

package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/replumb/replumb/internal/testing/apitest"
)

// TestMirror runs scripts on two clusters whose controllers are real and whose nodes are played:
// the current context is the source, and the context mirror the target.
func TestMirror(t *testing.T) {
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(serial{t}, testscript.Params{
		Dir: "testdata/mirror", UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			kubeconfig := filepath.Join(env.WorkDir, "kubeconfig")
			env.Setenv("KUBECONFIG", kubeconfig)
			source := full.Get(t)
			if err := source.Wipe(t.Context()); err != nil {
				return err
			}
			target, err := apitest.Run(apitest.PoolRange, apitest.Calico(), apitest.Controllers())
			if err != nil {
				return err
			}
			env.Defer(func() { _ = target.Stop() }) // what a script left running may hold it up; it ends all the same
			return bothClusters(env, kubeconfig, source, target)
		},
	})
}

// bothClusters plays the node of each, and writes how they are reached.
func bothClusters(env *testscript.Env, kubeconfig string, source, target *apitest.Server) error {
	all := map[string]apitest.Context{"source": {Server: source}, "mirror": {Server: target}}
	for _, c := range all {
		if err := play(env, c.Server, oneNode()); err != nil {
			return err
		}
	}
	return apitest.Contexts(kubeconfig, "source", all)
}

func oneNode() map[string]string { return map[string]string{"node1": "192.0.2.1"} }
