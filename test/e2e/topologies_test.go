package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/lab/lab"
)

// TestTwoNodes has what a cluster of two nodes is enough for, one of each proxy mode: what the lab confines and refuses, what agents see,
// a move that is killed on its way, and the barrier.
func TestTwoNodes(t *testing.T) {
	l := bringUp(t, named("e2e"))
	forgetNamesSoon(t, l)
	under := shopUnderTraffic(t, l)
	t.Run("StrangersAreRefused", func(t *testing.T) { testStrangersAreRefused(t, l) })
	t.Run("NodesAreConfined", func(t *testing.T) { testNodesAreConfined(t, l) })
	t.Run("KubectlReachesPods", func(t *testing.T) { testKubectlReachesPods(t, l) })
	t.Run("Supervisor", func(t *testing.T) { testSupervisor(t, l) })
	t.Run("LabRefusals", func(t *testing.T) { testLabRefusals(t, l) })
	t.Run("KilledAndFinished", func(t *testing.T) { testKilledAndFinished(t, l, under(t)) })
	t.Run("Barrier", func(t *testing.T) { testBarrier(t, l, under(t)) }) // whose control leaves traces in connection tracking
}

// TestCalico moves what a cluster with Calico and three control planes has: first all pods, then all Services.
func TestCalico(t *testing.T) {
	topology := withCalico("e2e-calico")
	topology.ControlPlanes = 3
	l := bringUp(t, topology)
	t.Run("PodCIDR", func(t *testing.T) { testPodCIDR(t, l) })
	t.Run("GuardedServices", func(t *testing.T) { testGuardedServices(t, l) })
	t.Run("WholeRange", func(t *testing.T) { testWholeRange(t, l) })
}

// TestProof has agents stop a move that loses requests in time, in a cluster like that of TestTwoNodes.
func TestProof(t *testing.T) {
	l := bringUp(t, named("e2e-agents"))
	forgetNamesSoon(t, l)
	testProof(t, l)
}

// TestProofLong has agents at length, in a cluster like that of TestTwoNodes.
func TestProofLong(t *testing.T) {
	l := bringUp(t, named("e2e-proof"))
	t.Run("Holds", func(t *testing.T) { testProofHolds(t, l) })
	t.Run("Nodes", func(t *testing.T) { testProofNodes(t, l) })
	t.Run("Rollback", func(t *testing.T) { testProofRollback(t, l) })
	t.Run("Endpoints", func(t *testing.T) { testProofEndpoints(t, l) })
	t.Run("Trouble", func(t *testing.T) { testProofTrouble(t, l) })
}

// forgetNamesSoon has CoreDNS remember names for 5 s instead of 30, so that tests do not have to wait until it has forgotten them.
func forgetNamesSoon(t *testing.T, l *lab.Lab) {
	t.Helper()
	maps := l.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem)
	config, err := maps.Get(t.Context(), "coredns", metav1.GetOptions{})
	must(t, err)
	soon := strings.NewReplacer("ttl 30", "ttl 5", "cache 30", "cache 5").Replace(config.Data["Corefile"])
	if strings.Count(soon, " 5\n") < 2 {
		t.Fatalf("the Corefile has other times to live:\n%s", soon)
	}
	config.Data["Corefile"] = soon
	if _, err := maps.Update(t.Context(), config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"}
	must(t, l.Client().CoreV1().Pods(metav1.NamespaceSystem).DeleteCollection(t.Context(), metav1.DeleteOptions{}, of))
	eventually(t, settled, func() error {
		pods, err := l.Client().CoreV1().Pods(metav1.NamespaceSystem).List(t.Context(), of)
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.DeletionTimestamp != nil || !connectivity.Ready(p) {
				return fmt.Errorf("CoreDNS' pod %s is not ready, or is being deleted", p.Name)
			}
		}
		if len(pods.Items) == 0 {
			return errors.New("there is no CoreDNS")
		}
		return nil
	})
}

// removeNamespaces deletes namespaces with all that is in them, also when the test is over, and waits until they are gone.
func removeNamespaces(t *testing.T, l *lab.Lab, names ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	namespaces := l.Client().CoreV1().Namespaces()
	for _, name := range names {
		if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	eventually(t, 2*settled, func() error {
		for _, name := range names {
			if err := l.Client().CoreV1().Pods(name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
				return err
			}
			if _, err := namespaces.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("namespace %s is still there: %w", name, err)
			}
		}
		return nil
	})
}
