// Package podnetwork finds a cluster's pod networks (CNIs) by their DaemonSets, and their objects.
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

// Of recognizes a network's DaemonSet by its vendor's labels, names and images; empty for others,
// and for a Calico that only enforces policies.
func Of(ds *appsv1.DaemonSet) v1alpha1.CNIName {
	if program := Program(ds); program != v1alpha1.Calico || !enforcesOnly(&ds.Spec.Template.Spec) {
		return program
	}
	return ""
}

// enforcesOnly reports whether a Calico gives pods neither interfaces nor addresses:
//
//   - Tigera's operator names another plugin (CNI_PLUGIN_TYPE, in pkg/render/node.go in
//     github.com/tigera/operator).
//   - It installs no plugin, and has no backend or interfaces of another, such as eni of AWS, azv of
//     Azure and gke of GKE (config/v1.7/calico.yaml in github.com/aws/amazon-vpc-cni-k8s).
//   - It has no backend, and the cloud routes Nodes' ranges (cluster/addons/calico-policy-controller
//     in k8s.io/kubernetes, and manifests/calico-policy-only.yaml in github.com/projectcalico/calico).
func enforcesOnly(spec *corev1.PodSpec) bool {
	env, installs := map[string]string{}, false
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		installs = installs || c.Name == "install-cni"
		for _, e := range c.Env {
			installs = installs || e.Name == "CNI_NETWORK_CONFIG" || e.Name == "CNI_CONF_NAME"
			env[e.Name] = e.Value
		}
	}
	routed, foreign := env["CALICO_NETWORKING_BACKEND"] == "none", env["FELIX_INTERFACEPREFIX"] != ""
	if strings.Contains(env["FELIX_INTERFACEPREFIX"], "cali") {
		foreign = false
	}
	switch plugin := env["CNI_PLUGIN_TYPE"]; {
	case plugin != "":
		return plugin != "Calico"
	case installs:
		return routed && env["USE_POD_CIDR"] == "true"
	}
	return routed || foreign
}

// Program is Of for all programs of a network, also those that only enforce policies.
func Program(ds *appsv1.DaemonSet) v1alpha1.CNIName {
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
	case named("weave-net") || runs("/weave-kube:", "/weave-kube@"):
		return v1alpha1.Weave
	}
	return ""
}

// Name is the network of a DaemonSet, also of those that replumb cannot replace; else empty.
func Name(ds *appsv1.DaemonSet) string {
	if known := Program(ds); known != "" {
		return string(known)
	}
	for image, name := range map[string]string{
		"/antrea-agent": "antrea", "/antrea-ubuntu": "antrea", "/kube-router": "kube-router", "/kube-ovn": "kube-ovn",
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

// Namespaces are those that vendors make for a network alone.
func Namespaces() []string {
	return []string{"kube-flannel", "calico-system", "calico-apiserver", "tigera-operator"}
}

// Remnant is an object that belongs to a network, beside its DaemonSet.
type Remnant struct {
	schema.GroupVersionKind
	types.NamespacedName
}

// Remnants are a network's objects by the names of its manifests and charts, without its kinds and
// their objects: those do nothing by themselves, and may still be wanted.
func Remnants(network v1alpha1.CNIName, namespace string) []Remnant {
	kinds := map[string]schema.GroupVersionKind{
		"DaemonSet": {Group: "apps", Version: "v1", Kind: "DaemonSet"}, "Deployment": {Group: "apps", Version: "v1", Kind: "Deployment"},
		"PodDisruptionBudget": {Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"}, "Service": {Version: "v1", Kind: "Service"},
		"ConfigMap": {Version: "v1", Kind: "ConfigMap"}, "ServiceAccount": {Version: "v1", Kind: "ServiceAccount"},
		"ClusterRole":        {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
		"ClusterRoleBinding": {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
		"Role":               {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
		"RoleBinding":        {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	}
	var names []string
	switch network {
	case v1alpha1.Flannel:
		names = []string{
			"ConfigMap/kube-flannel-cfg", "ServiceAccount/flannel", "ClusterRoleBinding//flannel", "ClusterRole//flannel",
		}
	case v1alpha1.Cilium: // the chart's; its certificates and Envoy are only where Hubble and policies of layer 7 are
		names = []string{
			"Deployment/cilium-operator", "ConfigMap/cilium-config", "ServiceAccount/cilium", "ServiceAccount/cilium-operator",
			"ClusterRoleBinding//cilium", "ClusterRoleBinding//cilium-operator", "ClusterRole//cilium", "ClusterRole//cilium-operator",
		}
	case v1alpha1.Weave: // prog/weave-kube/weave-daemonset-k8s-1.11.yaml in github.com/weaveworks/weave; its daemons keep the ConfigMap themselves
		names = []string{
			"ConfigMap/weave-net", "ServiceAccount/weave-net", "RoleBinding/weave-net", "Role/weave-net", "ClusterRoleBinding//weave-net",
			"ClusterRole//weave-net",
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
