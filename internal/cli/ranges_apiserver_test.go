//go:build apiserver && long

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

// TestRanges runs scripts on two clusters, which are the contexts prod and staging. The context
// viewer is a user of prod without any right, and no one answers where the context gone leads to.
func TestRanges(t *testing.T) {
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	prod, err := apitest.Run(apitest.PoolRange, apitest.Calico())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prod.Stop(); err != nil {
			t.Error(err)
		}
	})
	staging := plain.Get(t)
	testscript.RunT(serial{t}, testscript.Params{
		Dir: "testdata/ranges", UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			staging.Clean(t)
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			if err := copyFile(filepath.Join(env.WorkDir, "crds.yaml"), "../../deploy/crds/replumb.dev_migrations.yaml"); err != nil {
				return err
			}
			file := filepath.Join(env.WorkDir, "kubeconfig")
			env.Setenv("KUBECONFIG", file)
			return apitestContexts(file, prod, staging)
		},
	})
}

// apitestContexts writes how the clusters are reached, and how one is not.
func apitestContexts(file string, prod, staging *apitest.Server) error {
	err := apitest.Contexts(file, "prod", map[string]apitest.Context{
		"prod": {Server: prod}, "staging": {Server: staging}, "viewer": {Server: prod, As: "viewer"},
	})
	if err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return err
	}
	config.Clusters["gone"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["gone"] = &clientcmdapi.Context{Cluster: "gone", AuthInfo: "prod"}
	return clientcmd.WriteToFile(*config, file)
}
