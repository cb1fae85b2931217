//go:build apiserver

package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"
)

// TestMirror runs scripts on two clusters whose controllers are real and whose nodes are played: the current context is the source,
// and the context mirror the target.
func TestMirror(t *testing.T) {
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(serial{t}, testscript.Params{
		Dir: "testdata/mirror", UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			kubeconfig := filepath.Join(env.WorkDir, "kubeconfig")
			env.Setenv("KUBECONFIG", kubeconfig)
			return bothClusters(env, kubeconfig)
		},
	})
}

// bothClusters starts them, and writes how they are reached.
func bothClusters(env *testscript.Env, kubeconfig string) error {
	whole := clientcmd.GetConfigFromFileOrDie(os.DevNull)
	for _, context := range []string{"source", "mirror"} {
		server, err := playedCluster(env, map[string]string{"node1": "192.0.2.1"})
		if err != nil {
			return err
		}
		one, err := clientcmd.LoadFromFile(server.Kubeconfig)
		if err != nil {
			return err
		}
		c := one.Contexts[one.CurrentContext].DeepCopy()
		whole.Clusters[context], whole.AuthInfos[context] = one.Clusters[c.Cluster], one.AuthInfos[c.AuthInfo]
		c.Cluster, c.AuthInfo = context, context
		whole.Contexts[context] = c
	}
	whole.CurrentContext = "source"
	return clientcmd.WriteToFile(*whole, kubeconfig)
}

// TestNetworks runs scripts about the network of pods on a cluster whose nodes are played.
func TestNetworks(t *testing.T) {
	played(t, "testdata/cni", map[string]string{"node1": "192.0.2.1"})
}
