package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// minEnded is how many requests have to be made while a node ends, for their success to mean something.
const minEnded = 5_000

// TestNodeRemoval ends a node that has a pod of a DaemonSet, while clients on the other nodes call the Service in front of that DaemonSet, and
// agents watch. Nothing may be lost. The control ends the next node just like that.
func TestNodeRemoval(t *testing.T) {
	topology := named("e2e-leave")
	topology.Nodes = []lab.ProxyMode{lab.IPTables, lab.NFTables, lab.IPTables}
	l := bringUp(t, topology)
	nodes := l.NodeNames()
	slices.Sort(nodes)
	stay, goes := nodes[:2], nodes[2]
	const namespace = "everywhere"
	each := workload.Echo{Namespace: namespace, Name: "each", PartOf: "everywhere"}
	callees, err := start(t.Context(), l, namespace, append([]runtime.Object{workload.Namespace(namespace)}, each.EachNode()...))
	must(t, err)
	calls := traffic.Call(namespace, callees, traffic.Rates{Request: 100})
	delete(calls.Targets, traffic.ByName) // cluster DNS moves as well, which is another matter
	watch, err := traffic.Start(t.Context(), l.Client(), stay, calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	file := removal(t, l, stay, goes)

	ended := s.during(t, "the end of a node", func() {
		t.Log(replumb(t, l, "apply", "-f", file))
	})
	ended.requireNothingLost(t, traffic.All)
	if sent := ended.stats(t, traffic.All).Sent; sent < minEnded {
		t.Errorf("only %d requests were made, which prove little; want %d", sent, minEnded)
	}
	if slices.Contains(l.NodeNames(), goes) {
		t.Fatalf("node %s has not ended", goes)
	}
	if got := proofOf(t, l, "removal"); got.Nodes != len(stay) {
		t.Errorf("status has %+v", got)
	}
	replumb(t, l, "finish", "removal", "--yes")
	watch.Stop()
	requireEndLoses(t, l, calls, stay[0], stay[1])
}

// removal is a Migration that ends a node, by an action.
func removal(t *testing.T, l *lab.Lab, stay []string, goes string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "replumb-owner-") // a socket's path may have 107 characters
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	hosts := func(names ...string) v1alpha1.NodeSet {
		return v1alpha1.NodeSet{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpIn, Values: names},
		}}}
	}
	o := &owner{t: t, lab: l}
	m := &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "removal"},
		Spec: v1alpha1.MigrationSpec{
			Nodes: &v1alpha1.NodesSpec{
				Old: hosts(goes), New: hosts(stay...), Canary: v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryDisabled},
				Terminate: v1alpha1.TerminateSpec{Action: answering(t, dir, o.serve)},
			},
			Image: workload.ReplumbImage, Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsEnabled},
		},
	}
	body, err := yaml.Marshal(m)
	must(t, err)
	path := filepath.Join(dir, "removal.yaml")
	must(t, os.WriteFile(path, body, 0o600))
	return path
}

// requireEndLoses is the control: a node ends as it is, and clients on another one must lose something.
func requireEndLoses(t *testing.T, l *lab.Lab, calls traffic.Calls, client, goes string) {
	t.Helper()
	calls.Client = "control"
	watch, err := traffic.Start(t.Context(), l.Client(), []string{client}, calls)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	began := time.Now().Truncate(time.Second)
	must(t, l.Workers().Remove(t.Context(), goes))
	eventually(t, settled, func() error {
		soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
		if soFar.stats(t, traffic.All).Failed == 0 {
			return errors.New("nothing was lost")
		}
		return nil
	})
	lost := s.since(t, "the end of a node as it is", began).stats(t, traffic.All)
	t.Logf("control: %d of %d requests were lost when a node ended as it was", lost.Failed, lost.Sent)
}
