//go:build apiserver

package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/replumb/replumb/internal/testing/apitest"
)

// TestFleet runs scripts of fleets.
func TestFleet(t *testing.T) { inFleet(t, "testdata/fleet") }

// inFleet runs scripts on two clusters, which are the contexts one and two. No one answers where
// the context gone leads to.
func inFleet(t *testing.T, dir string) {
	t.Helper()
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	one, two := plain.Get(t), apitest.Start(t, apitest.PoolRange)
	testscript.RunT(serial{t}, testscript.Params{
		Dir: dir, UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			for _, server := range []*apitest.Server{one, two} {
				server.Clean(t)
				server.Namespace(t, "shop")
			}
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			// A relative path has to be found by the programs as well, which work in other folders.
			env.Setenv("KUBECONFIG", "kubeconfig")
			return fleetContexts(filepath.Join(env.WorkDir, "kubeconfig"), one, two)
		},
	})
}

// fleetContexts writes how the clusters are reached, and how one is not.
func fleetContexts(file string, one, two *apitest.Server) error {
	if err := apitest.Contexts(file, "one", map[string]apitest.Context{"one": {Server: one}, "two": {Server: two}}); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return err
	}
	config.Clusters["gone"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["gone"] = &clientcmdapi.Context{Cluster: "gone", AuthInfo: "one"}
	return clientcmd.WriteToFile(*config, file)
}
