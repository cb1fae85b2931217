//go:build apiserver

package cli

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// TestPods runs scripts that move pods, each on an empty cluster: with real controllers and a real
// scheduler, two nodes that are played, and Calico's books.
func TestPods(t *testing.T) {
	played(t, "testdata/pods", twoNodes())
}

func twoNodes() map[string]string {
	return map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2"}
}

// TestNodes runs scripts that move nodes, in the same way: two of the four have addresses of
// another network.
func TestNodes(t *testing.T) {
	played(t, "testdata/nodes", twoNetworks())
}

func twoNetworks() map[string]string {
	return map[string]string{"node1": "192.0.2.1", "node2": "192.0.2.2", "node3": "198.51.100.1", "node4": "198.51.100.2"}
}

// played runs scripts on clusters with nodes of those addresses.
func played(t *testing.T, dir string, nodes map[string]string) {
	t.Helper()
	assets, err := filepath.Abs(os.Getenv("KUBEBUILDER_ASSETS"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.RunT(serial{t}, testscript.Params{
		Dir: dir, UpdateScripts: *update, Cmds: ownCommands(),
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir)
			server := full.Get(t)
			if err := server.Wipe(t.Context()); err != nil {
				return err
			}
			if err := play(env, server, nodes); err != nil {
				return err
			}
			env.Setenv("KUBECONFIG", server.Kubeconfig)
			env.Setenv("PATH", assets+string(filepath.ListSeparator)+env.Getenv("PATH"))
			return nil
		},
	})
}

// play has a server's nodes played until the script ends.
func play(env *testscript.Env, server *apitest.Server, nodes map[string]string) error {
	ctx, stop := context.WithCancel(context.Background())
	fleet := &fakekubelet.Fleet{
		Client:    server,
		Addresses: &fakekubelet.Blocks{Client: server},
		Phase: func(pod *corev1.Pod) corev1.PodPhase {
			if pod.Labels["replumb.dev/canary"] == "call" { // it has called, and all answered
				return corev1.PodSucceeded
			}
			return corev1.PodRunning
		},
	}
	agents := &fakekubelet.Agents{Client: server}
	var playing sync.WaitGroup
	playing.Go(func() { fleet.Run(ctx) })
	playing.Go(func() { agents.Run(ctx) })
	env.Defer(func() {
		stop()
		playing.Wait()
	})
	for name, a := range nodes {
		if err := fleet.Node(ctx, name, netip.MustParseAddr(a)); err != nil {
			return err
		}
	}
	information := calico.Empty("ClusterInformation", "default")
	information.Object["spec"] = map[string]any{"datastoreReady": true}
	return server.Create(ctx, information)
}
