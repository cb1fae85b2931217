package cni

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

const calicoGroup = "crd.projectcalico.org"

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
		if name := podnetwork.Of(&sets[i]); name != "" {
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
