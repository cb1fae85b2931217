// Package podnetwork finds by their DaemonSets the networks for pods (CNIs) that a cluster has, and which objects belong to them.
package podnetwork

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Of says which network a DaemonSet is, by the labels, names and images that vendors give theirs; empty, if none.
func Of(ds *appsv1.DaemonSet) v1alpha1.CNIName {
	labels := []string{ds.Labels["k8s-app"], ds.Labels["app"], ds.Labels["app.kubernetes.io/name"], ds.Name}
	labels = append(labels, ds.Spec.Template.Labels["k8s-app"], ds.Spec.Template.Labels["app"])
	named := func(names ...string) bool {
		return slices.ContainsFunc(labels, func(l string) bool { return slices.Contains(names, l) })
	}
	runs := func(parts ...string) bool {
		return slices.ContainsFunc(ds.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains("/"+c.Image, p) })
		})
	}
	flannel := named("flannel", "kube-flannel-ds", "kube-flannel") || runs("/flannel:", "/flannel@", "/mirrored-flannel", "/flanneld:")
	calico := named("calico-node") || runs("/calico/node", "/mirrored-calico-node", "/calico-node:")
	switch {
	case named("canal") || flannel && calico:
		return v1alpha1.Canal
	case flannel:
		return v1alpha1.Flannel
	case calico:
		return v1alpha1.Calico
	case named("cilium", "cilium-agent") || runs("/cilium/cilium"):
		return v1alpha1.Cilium
	}
	return ""
}

// Name of the network that a DaemonSet is, also of those that replumb cannot switch from; empty, if it is none that is known.
func Name(ds *appsv1.DaemonSet) string {
	if known := Of(ds); known != "" {
		return string(known)
	}
	for image, name := range map[string]string{
		"/weave-kube": "weave", "/antrea-agent": "antrea", "/antrea-ubuntu": "antrea", "/kube-router": "kube-router", "/kube-ovn": "kube-ovn",
		"/ovn-kube": "ovn-kubernetes", "/amazon-k8s-cni": "aws-vpc-cni", "/azure-cns": "azure-cni",
	} {
		for i := range ds.Spec.Template.Spec.Containers {
			if strings.Contains("/"+ds.Spec.Template.Spec.Containers[i].Image, image) {
				return name
			}
		}
	}
	return ""
}

// Namespaces are those that vendors' manifests and operators make for a network and for nothing else.
func Namespaces() []string {
	return []string{"kube-flannel", "calico-system", "calico-apiserver", "tigera-operator"}
}

// Remnant is an object that belongs to a network, beside its DaemonSet.
type Remnant struct {
	schema.GroupVersionKind
	types.NamespacedName
}

// Remnants of a network by the names that its vendor's manifests and charts give them. Definitions of its kinds and objects of those
// are none: without the network they do nothing, and what they say may still be wanted.
func Remnants(network v1alpha1.CNIName, namespace string) []Remnant {
	kinds := map[string]schema.GroupVersionKind{
		"DaemonSet": {Group: "apps", Version: "v1", Kind: "DaemonSet"}, "Deployment": {Group: "apps", Version: "v1", Kind: "Deployment"},
		"PodDisruptionBudget": {Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}, "Service": {Version: "v1", Kind: "Service"},
		"ConfigMap": {Version: "v1", Kind: "ConfigMap"}, "ServiceAccount": {Version: "v1", Kind: "ServiceAccount"},
		"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
		"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	}
	var names []string
	switch network {
	case v1alpha1.Flannel:
		names = []string{
			"ConfigMap/kube-flannel-cfg", "ServiceAccount/flannel", "ClusterRoleBinding//flannel", "ClusterRole//flannel",
		}
	case v1alpha1.Calico:
		names = []string{
			"Deployment/calico-kube-controllers", "Deployment/calico-typha", "PodDisruptionBudget/calico-kube-controllers",
			"PodDisruptionBudget/calico-typha", "Service/calico-typha", "ConfigMap/calico-config", "ServiceAccount/calico-node",
			"ServiceAccount/calico-kube-controllers", "ServiceAccount/calico-cni-plugin", "ClusterRoleBinding//calico-node",
			"ClusterRoleBinding//calico-kube-controllers", "ClusterRoleBinding//calico-cni-plugin", "ClusterRole//calico-node",
			"ClusterRole//calico-kube-controllers", "ClusterRole//calico-cni-plugin",
		}
	}
	var out []Remnant
	for _, n := range names {
		kind, name, _ := strings.Cut(n, "/")
		in := namespace
		if whole, ok := strings.CutPrefix(name, "/"); ok {
			name, in = whole, ""
		}
		out = append(out, Remnant{kinds[kind], types.NamespacedName{Namespace: in, Name: name}})
	}
	return out
}
