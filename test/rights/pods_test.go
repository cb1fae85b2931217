package rights

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
)

const podMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: pods}
spec:
  image: replumb
  podCIDR: {to: [10.245.0.0/24], roll: {barePods: Evict}}
  batch: {settle: 0s}
`

// kubeadm is its configuration, which says of which range pods are, and which the operator changes before the old one is given up.
func kubeadm(pods string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"},
		Data:       map[string]string{"ClusterConfiguration": "networking: {podSubnet: " + pods + "}\n"},
	}
}

// TestPods: the roles are enough for whole migrations of pods between Calico's pools, and all of them is needed. The cluster is one of kubeadm.
func TestPods(t *testing.T) {
	s := begin(t, "pods", podMove)
	s.madeByKubeadm("10.244.0.0/24")
	s.workloads("web")
	s.expect(3, viewer, []string{"check", "-f", s.file},
		"missing permission: create,patch,delete ippools.crd.projectcalico.org (role replumb-pods-operate)")
	s.moves("pods")
	s.movesForGood("pods", func() { s.must(s.Update(t.Context(), kubeadm("10.245.0.0/24"))) })

	var roles access.Roles
	for _, role := range podcidr.Roles() {
		if role.File != noderanges.RoleFile && role.File != noderanges.PoolRoleFile {
			roles = append(roles, role)
		}
	}
	s.audited(roles, unusedByPods())
}

// madeByKubeadm has the cluster look as kubeadm leaves it.
func (s *scene) madeByKubeadm(pods string) {
	s.Helper()
	all := &corev1.NodeList{}
	s.must(s.List(s.Context(), all))
	for i := range all.Items {
		body := []byte(`{"metadata":{"annotations":{"kubeadm.alpha.kubernetes.io/cri-socket":"unix:///run/containerd/containerd.sock"}}}`)
		s.must(s.Patch(s.Context(), &all.Items[i], client.RawPatch(types.MergePatchType, body)))
	}
	s.eventually(func() error { return s.Create(s.Context(), kubeadm(pods)) }) // the API server makes the namespace a while after its start
}

// unusedByPods are the rights that no request takes here, with what would.
func unusedByPods() map[string]string {
	const leaked = "an address that no pod has any more is taken back"
	all := map[string]string{
		"get validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": lifted,
		"delete ipamhandles.crd.projectcalico.org":                                                  leaked,
		"patch ipreservations.crd.projectcalico.org":                                                "nodes join or leave while the pools change",
		"list ciliumpodippools.cilium.io":                                                           "replumb ranges",
		"get configmaps cilium-config in kube-system":                                               "nodes whose ranges are of Cilium",
		"get jobs.batch":                   "the pods of Jobs that are evicted",
		"patch services in replumb-system": "the Service that agents call moves, where Services do",
	}
	maps.Copy(all, unusedAgents())
	maps.Copy(all, unusedKinds(podcidr.Roles()))
	return all
}
