package manifests

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// CalicoGroup is the API group of Calico's own objects.
const CalicoGroup = "crd.projectcalico.org"

// Enforces reports whether a container makes NetworkPolicies hold.
func Enforces(c corev1.Container) bool {
	return slices.ContainsFunc(
		[]string{"calico/node", "calico-node", "cilium/cilium", "cilium-agent", "kube-network-policies", "kube-router", "weave-npc"},
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

// Detect finds every network that a cluster has. A Calico that only enforces policies counts beside
// a network that is known: it would be in the way of the new one.
func Detect(sets []appsv1.DaemonSet) []Network {
	var out, beside []Network
	for i := range sets {
		if name := podnetwork.Of(&sets[i]); name != "" {
			out = append(out, Network{Name: name, Set: &sets[i]})
		} else if name := podnetwork.Program(&sets[i]); name != "" {
			beside = append(beside, Network{Name: name, Set: &sets[i]})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return append(out, beside...)
}

// UnknownNetworks are DaemonSets that are no known network, and are one or enforce policies on one.
func UnknownNetworks(sets []appsv1.DaemonSet) []string {
	var out []string
	for i := range sets {
		ds := &sets[i]
		is := podnetwork.Name(ds)
		containers := ds.Spec.Template.Spec.Containers
		switch {
		case podnetwork.Of(ds) != "":
			continue
		case slices.ContainsFunc(containers, Enforces):
			is = "what makes NetworkPolicies hold"
		case slices.ContainsFunc(containers, func(c corev1.Container) bool { return strings.Contains("/"+c.Image, "/kindnetd") }):
			is = "kindnet, which writes a file with host-local itself"
		case is == "":
			continue
		}
		out = append(out, fmt.Sprintf("DaemonSet %s/%s is %s", ds.Namespace, ds.Name, is))
	}
	return out
}

// RangesOf is what a ConfigMap says that pods get their addresses from.
func RangesOf(cm *corev1.ConfigMap) string {
	var all []string
	for _, c := range podnetwork.ConfiguredBy(cm) {
		all = append(all, c.Range)
	}
	return strings.Join(all, ",")
}

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
