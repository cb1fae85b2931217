package cni

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestKeeper goes by the metadata of objects as they are published or made, cut down to what says whose they are.
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
			// Annotations of objects that k3s applied, as pkg/apply in rancher/wrangler sets them; the hash alone is a label.
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
			// The label of AKS' own pods in kube-system, after Microsoft's page on Microsoft Entra pod-managed identities.
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
			by, comesBack := keeper(&o)
			if (by == "") != (tt.by == "") || !strings.Contains(by, tt.by) || comesBack == tt.stays {
				t.Errorf("it is held by %q and comes back: %v; want %q, %v", by, comesBack, tt.by, !tt.stays)
			}
		})
	}
}

// TestPoliciesOnly: a Calico that makes policies hold on another network is no network, and in the way beside one that is known.
func TestPoliciesOnly(t *testing.T) {
	set := func(name, image string, env ...corev1.EnvVar) appsv1.DaemonSet {
		ds := appsv1.DaemonSet{}
		ds.Name, ds.Namespace = name, metav1.NamespaceSystem
		ds.Spec.Template.Spec.Containers = []corev1.Container{{Name: name, Image: image, Env: env}}
		return ds
	}
	policies := set("calico-node", "quay.io/calico/node:v3.32.0", corev1.EnvVar{Name: "CALICO_NETWORKING_BACKEND", Value: "none"})
	for _, tt := range []struct {
		name string
		sets []appsv1.DaemonSet
		want []v1alpha1.CNIName
		says string
	}{
		{"with the VPC CNI", []appsv1.DaemonSet{policies, set("aws-node", "e.com/amazon-k8s-cni:v1.20.4")}, nil, "no DaemonSet is a network"},
		{"with Azure's", []appsv1.DaemonSet{policies, set("azure-cns", "mcr.microsoft.com/containernetworking/azure-cns:v1.6.5")}, nil, "no DaemonSet is a network"},
		{"with GKE's", []appsv1.DaemonSet{policies, set("netd", "gke.gcr.io/netd:v0.8.0")}, nil, "no DaemonSet is a network"},
		{
			"with flannel",
			[]appsv1.DaemonSet{policies, set("kube-flannel-ds", "ghcr.io/flannel-io/flannel:v0.27.4")},
			[]v1alpha1.CNIName{v1alpha1.Flannel, v1alpha1.Calico},
			"more than one network",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Inventory{Networks: detect(tt.sets)}
			var got []v1alpha1.CNIName
			for _, n := range s.Networks {
				got = append(got, n.Name)
			}
			if len(got) != len(tt.want) || len(got) > 0 && (got[0] != tt.want[0] || got[1] != tt.want[1]) {
				t.Errorf("networks are %v, want %v", got, tt.want)
			}
			if found := checkFrom(Input{Inventory: s}); len(found) != 1 || !strings.Contains(found[0].Message, tt.says) {
				t.Errorf("it says %v, want %q", found, tt.says)
			}
		})
	}
}

// TestOperators: one that runs keeps a network as it is, unless it came with the network that the migration brings.
func TestOperators(t *testing.T) {
	deployment := func(name string, replicas *int32, migration string) appsv1.Deployment {
		d := appsv1.Deployment{}
		d.Namespace, d.Name, d.Spec.Replicas = "kube-system", name, replicas
		d.Labels = map[string]string{v1alpha1.LabelMigration: migration}
		return d
	}
	got := operatorsOf("m", []appsv1.Deployment{
		deployment("tigera-operator", nil, ""), deployment("tigera-operator", ptr.To[int32](0), ""), deployment("coredns", nil, ""),
		deployment("cilium-operator", ptr.To[int32](2), "m"), deployment("cilium-operator", nil, "other"),
	})
	if want := []string{"Deployment kube-system/tigera-operator", "Deployment kube-system/cilium-operator"}; !slices.Equal(got, want) {
		t.Errorf("they are %q, want %q", got, want)
	}
}
