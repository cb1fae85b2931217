//go:build apiserver && long

package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// parkable is Calico with what writes its configuration.
const parkable = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: calico-node, namespace: kube-system, labels: {k8s-app: calico-node}}
spec:
  selector: {matchLabels: {k8s-app: calico-node}}
  template:
    metadata: {labels: {k8s-app: calico-node}}
    spec:
      hostNetwork: true
      tolerations: [{operator: Exists}]
      initContainers: [{name: install-cni, image: calico, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}]}]
      containers: [{name: calico-node, image: calico}]
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: new}
spec: {cidr: 10.245.0.0/16, blockSize: 26, natOutgoing: true, nodeSelector: all()}
`

// withHostLocal is a cluster of two nodes whose network is nothing that it has.
func withHostLocal(t *testing.T) *fixture {
	t.Helper()
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.CNI.From, m.Spec.CNI.Mode = v1alpha1.HostLocal, v1alpha1.CNIInPlace
		m.Spec.Proof.Agents = v1alpha1.AgentsDisabled // the fleet plays none
		m.Spec.CNI.Canary.Mode = v1alpha1.PodCanaryDisabled
	})
	f.Must(os.WriteFile(filepath.Join(f.dir, "calico.yaml"), []byte(parkable), 0o600))
	f.Must(server.Delete(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-flannel", Name: "kube-flannel-ds"}}))
	f.Until("flannel to be gone", func() bool { return len(f.pods("kube-flannel", "flannel")) == 0 })
	f.gives("a", "10.244.0.0/24")
	f.gives("b", "10.244.1.0/24")
	return f
}

// gives a Node a range, as the controller manager does.
func (f *fixture) gives(node, podCIDR string) {
	f.Helper()
	body := fmt.Appendf(nil, `{"spec":{"podCIDR":%q,"podCIDRs":[%[1]q]}}`, podCIDR)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	f.Must(server.Patch(f.Context(), n, client.RawPatch(types.MergePatchType, body)))
}

// TestHostLocalIsLookedAtFirst: a node that has its network from elsewhere ends the run before
// anything is installed, and is named. The agent that looks is told the range of that node alone.
func TestHostLocalIsLookedAtFirst(t *testing.T) {
	f := withHostLocal(t)
	told := map[string]string{}
	f.Mu.Lock()
	f.says = func(pod *corev1.Pod) *nodecleanup.TracesReport {
		if pod.Labels[taskpod.Label] != nodepod.VerbDetectSource {
			return nil
		}
		told[pod.Spec.NodeName] = fmt.Sprint(pod.Spec.Containers[0].Args[1:5])
		r := &nodecleanup.TracesReport{}
		if pod.Spec.NodeName == "b" {
			r.Problems = []string{"/etc/cni/net.d/87-podman.conflist comes first"}
		}
		return r
	}
	f.Mu.Unlock()

	err := f.forward()
	var wrong *switchover.SourceError
	if !errors.As(err, &wrong) || wrong.Node != "b" || wrong.Advice() == "" {
		t.Errorf("it ended with %v", err)
	}
	if f.have("DaemonSet", "kube-system", "calico-node", "apps/v1") != nil {
		t.Error("Calico was installed")
	}
	if st := f.status().CNI; st == nil || st.Begun != nil || st.From != v1alpha1.HostLocal ||
		!slices.Equal(st.Ranges, []string{"10.244.0.0/23"}) {
		t.Errorf("the Migration remembers %+v", st)
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for node, want := range map[string]string{
		"a": "[origin host-local --root=/host --pods=10.244.0.0/24]", "b": "[origin host-local --root=/host --pods=10.244.1.0/24]",
	} {
		if told[node] != want {
			t.Errorf("on node %s it is told %s, want %s", node, told[node], want)
		}
	}
}

// TestHostLocalNodeJoins: packets of pods of a node that joins on the way keep their addresses as
// those of all others do.
func TestHostLocalNodeJoins(t *testing.T) {
	f := withHostLocal(t)
	f.Must(server.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}))
	ranges := func() string {
		plans, err := f.job.Examine(t.Context())
		f.Must(err)
		var groups []engine.Group
		for _, phase := range plans.Apply().Phases {
			groups = append(groups, phase.Groups...)
		}
		// The fleet has pods of replumb end, so it would never be ready.
		f.Must(step(t, groups, "crossing").(*engine.Write).Write(t.Context()))
		set := &appsv1.DaemonSet{}
		f.Must(server.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "m-crossing"}, set))
		return set.Spec.Template.Spec.Containers[0].Args[2]
	}
	if got := ranges(); got != "--ranges=10.244.0.0/23,10.245.0.0/16" {
		t.Errorf("they are kept for %s", got)
	}
	f.Must(f.fleet.Node(t.Context(), "c", netip.MustParseAddr("192.0.2.3")))
	f.gives("c", "10.244.2.0/24")
	if got := ranges(); got != "--ranges=10.244.0.0/23,10.244.2.0/24,10.245.0.0/16" {
		t.Errorf("with another node they are kept for %s", got)
	}
}
