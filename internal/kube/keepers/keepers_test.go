package keepers

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestKeeper goes by the metadata of objects as they are published or made, cut down to what says
// whose they are.
func TestKeeper(t *testing.T) {
	for _, tt := range []struct {
		name, meta string
		by         string // part of what is said; empty, if no one holds it
		stays      bool
	}{
		{name: "a manifest", meta: `{labels: {k8s-app: calico-node}}`, stays: true},
		{
			name: "Helm", by: "Helm (release flannel)", stays: true,
			meta: `{labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: flannel}}`,
		},
		{
			// tests/integration/update_cluster/privateflannel in kubernetes/kops.
			name: "kOps", by: "kOps (addon networking.flannel): have it forget",
			meta: `{labels: {addon.kops.k8s.io/name: networking.flannel, app: flannel, app.kubernetes.io/managed-by: kops,
				role.kubernetes.io/networking: "1"}}`,
		},
		{
			// CreateOrUpdateObject in pkg/controller/utils/component.go in tigera/operator.
			name: "tigera-operator", by: "tigera-operator (Installation default, which owns it): delete",
			meta: `{ownerReferences: [{apiVersion: operator.tigera.io/v1, kind: Installation, name: default, uid: u, controller: true}]}`,
		},
		{
			name: "tigera-operator, one owner of several", by: "tigera-operator (APIServer default",
			meta: `{ownerReferences: [{apiVersion: operator.tigera.io/v1, kind: APIServer, name: default, uid: u},
				{apiVersion: operator.tigera.io/v1, kind: Installation, name: default, uid: v}]}`,
		},
		{
			name: "an owner", by: "Flannel main, which owns it",
			meta: `{ownerReferences: [{apiVersion: example.com/v1, kind: Flannel, name: main, uid: u, controller: true}]}`,
		},
		{name: "an owner that is no controller", stays: true, meta: `{ownerReferences: [{apiVersion: example.com/v1, kind: Set, name: s, uid: u}]}`},
		{
			// Annotations of objects that k3s applied, as pkg/apply in rancher/wrangler sets them;
			// the hash alone is a label.
			name: "k3s", by: "k3s or RKE2 (addon flannel): move its file",
			meta: `{labels: {objectset.rio.cattle.io/hash: bce283298811743a}, annotations: {objectset.rio.cattle.io/id: "",
				objectset.rio.cattle.io/owner-gvk: "k3s.cattle.io/v1, Kind=Addon", objectset.rio.cattle.io/owner-name: flannel}}`,
		},
		{
			name: "Rancher", by: "Rancher (c-4sjtl)",
			meta: `{annotations: {objectset.rio.cattle.io/owner-gvk: "management.cattle.io/v3, Kind=Cluster", objectset.rio.cattle.io/owner-name: c-4sjtl}}`,
		},
		{
			// What helm-controller installs of charts/ in rancher/rke2.
			name: "RKE2", by: "RKE2 (HelmChart rke2-canal), which has no way out",
			meta: `{labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: rke2-canal, meta.helm.sh/release-namespace: kube-system}}`,
		},
		{
			// pkg/names and bindata/ in openshift/cluster-network-operator.
			name: "OpenShift", by: "OpenShift's cluster-network-operator",
			meta: `{annotations: {networkoperator.openshift.io/create-only: "true"}}`,
		},
		{
			name: "OpenShift, by its owner", by: "OpenShift's cluster-network-operator",
			meta: `{ownerReferences: [{apiVersion: operator.openshift.io/v1, kind: Network, name: cluster, uid: u, controller: true}]}`,
		},
		{
			// A component of GKE, as kubectl get -o yaml shows it.
			name: "GKE", by: "GKE (component pdcsi), which has no way out",
			meta: `{labels: {addonmanager.kubernetes.io/mode: EnsureExists}, annotations: {components.gke.io/component-name: pdcsi,
				components.gke.io/component-version: 0.16.14, components.gke.io/layer: addon}}`,
		},
		{
			// cluster/addons/calico-policy-controller in kubernetes/kubernetes v1.24.
			name: "an addon manager", by: "addonmanager.kubernetes.io/mode: Reconcile",
			meta: `{labels: {addonmanager.kubernetes.io/mode: Reconcile, k8s-app: calico-node}}`,
		},
		{
			// The label of AKS' own pods in kube-system, after Microsoft's page on Microsoft Entra
			// pod-managed identities.
			name: "AKS", by: "AKS, which has no way out",
			meta: `{labels: {addonmanager.kubernetes.io/mode: Reconcile, kubernetes.azure.com/managedby: aks}}`,
		},
		{name: "Argo CD", by: "Argo CD (application net)", meta: `{annotations: {argocd.argoproj.io/tracking-id: "net:apps/DaemonSet:kube-system/f"}}`},
		{
			name: "Argo CD with Helm", by: "Argo CD (application net)",
			meta: `{labels: {argocd.argoproj.io/instance: net}, annotations: {meta.helm.sh/release-name: flannel}}`,
		},
		{name: "Flux", by: "Flux (HelmRelease net)", meta: `{labels: {helm.toolkit.fluxcd.io/name: net}}`},
		{
			// lib/deployer in projectsveltos/libsveltos.
			name: "Sveltos", by: "Sveltos (ClusterProfile cni)",
			meta: `{annotations: {projectsveltos.io/owner-kind: ClusterProfile, projectsveltos.io/owner-name: cni, projectsveltos.io/hash: "sha256:5"}}`,
		},
		{
			name: "Sveltos of before", by: "Sveltos (ConfigMap cni)",
			meta: `{labels: {projectsveltos.io/reference-kind: ConfigMap, projectsveltos.io/reference-name: cni}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := metav1.ObjectMeta{}
			if err := yaml.UnmarshalStrict([]byte(tt.meta), &o); err != nil {
				t.Fatal(err)
			}
			by, comesBack := HeldBy(&o)
			if (by == "") != (tt.by == "") || !strings.Contains(by, tt.by) || comesBack == tt.stays {
				t.Errorf("it is held by %q and comes back: %v; want %q, %v", by, comesBack, tt.by, !tt.stays)
			}
		})
	}
}
