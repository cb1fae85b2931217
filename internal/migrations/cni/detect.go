package cni

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

const calicoGroup = "crd.projectcalico.org"

// networkOf says which network a DaemonSet is, by the labels, names and images that vendors give theirs; empty, if none.
func networkOf(ds *appsv1.DaemonSet) v1alpha1.CNIName {
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

// enforces reports whether a container makes NetworkPolicies hold.
func enforces(c corev1.Container) bool {
	return slices.ContainsFunc(
		[]string{"calico/node", "calico-node", "cilium/cilium", "kube-network-policies", "kube-router"},
		func(part string) bool {
			return strings.Contains(c.Image, part) || strings.Contains(c.Name, part)
		},
	)
}

// Network is what gives pods their network.
type Network struct {
	Name v1alpha1.CNIName
	// Set is its DaemonSet.
	Set *appsv1.DaemonSet
}

// detect finds every network that a cluster has.
func detect(sets []appsv1.DaemonSet) []Network {
	var out []Network
	for i := range sets {
		if name := networkOf(&sets[i]); name != "" {
			out = append(out, Network{Name: name, Set: &sets[i]})
		}
	}
	return out
}

// keeper says who would bring an object back that is deleted, and how that is seen; nothing, if no one. comesBack says that this needs
// no one's doing.
func keeper(o metav1.Object) (by string, comesBack bool) {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return fmt.Sprintf("%s %s, which owns it", ref.Kind, ref.Name), true
	}
	switch mode := labels["addonmanager.kubernetes.io/mode"]; {
	case mode != "":
		return "the addon manager (label addonmanager.kubernetes.io/mode: " + mode + ")", true
	case labels["argocd.argoproj.io/instance"] != "":
		return "Argo CD (application " + labels["argocd.argoproj.io/instance"] + ")", true
	case annotations["argocd.argoproj.io/tracking-id"] != "":
		name, _, _ := strings.Cut(annotations["argocd.argoproj.io/tracking-id"], ":")
		return "Argo CD (application " + name + ")", true
	case labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return "Flux (Kustomization " + labels["kustomize.toolkit.fluxcd.io/name"] + ")", true
	case labels["helm.toolkit.fluxcd.io/name"] != "":
		return "Flux (HelmRelease " + labels["helm.toolkit.fluxcd.io/name"] + ")", true
	case labels["objectset.rio.cattle.io/owner-name"] != "":
		return "k3s or RKE2 (addon " + labels["objectset.rio.cattle.io/owner-name"] + ")", true
	case annotations["meta.helm.sh/release-name"] != "":
		return "Helm (release " + annotations["meta.helm.sh/release-name"] + ")", false
	}
	return "", false
}

// rangesOf is what a ConfigMap says that pods get their addresses from: flannel's (Documentation/configuration.md) or Cilium's.
func rangesOf(cm *corev1.ConfigMap) string {
	if text, ok := cm.Data["net-conf.json"]; ok {
		var config struct{ Network, IPv6Network string }
		if json.Unmarshal([]byte(text), &config) == nil {
			return config.Network + "," + config.IPv6Network
		}
	}
	if cm.Name == "cilium-config" {
		return cm.Data["cluster-pool-ipv4-cidr"] + "," + cm.Data["cluster-pool-ipv6-cidr"]
	}
	return ""
}

// poolOf is the pool that calico-node makes if there is none.
func poolOf(s *corev1.PodSpec) string {
	for _, c := range s.Containers {
		for _, e := range c.Env {
			if e.Name == "CALICO_IPV4POOL_CIDR" {
				return e.Value
			}
		}
	}
	return ""
}

// remnant is an object that belongs to a network, beside its DaemonSet.
type remnant struct {
	schema.GroupVersionKind
	types.NamespacedName
}

// remnants of a network by the names that its vendor's manifests and charts give them. Definitions of its kinds and objects of those
// are none: without the network they do nothing, and what they say may still be wanted.
func remnants(network v1alpha1.CNIName, namespace string) []remnant {
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
	var out []remnant
	for _, n := range names {
		kind, name, _ := strings.Cut(n, "/")
		in := namespace
		if whole, ok := strings.CutPrefix(name, "/"); ok {
			name, in = whole, ""
		}
		out = append(out, remnant{kinds[kind], types.NamespacedName{Namespace: in, Name: name}})
	}
	return out
}
