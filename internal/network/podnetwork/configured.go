package podnetwork

import (
	"encoding/json"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Configured is a range of pods that a ConfigMap of a network names, and the key that has it.
type Configured struct{ Key, Range string }

// ConfiguredBy are the pod ranges in a ConfigMap of flannel (Documentation/configuration.md) or
// Cilium (ipam.operator.clusterPoolIPv4PodCIDRList of its chart, joined by spaces).
func ConfiguredBy(cm *corev1.ConfigMap) (all []Configured) {
	add := func(key, text string) {
		for _, one := range strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' }) {
			all = append(all, Configured{Key: key, Range: one})
		}
	}
	if text, ok := cm.Data["net-conf.json"]; ok {
		var config struct{ Network, IPv6Network string }
		if json.Unmarshal([]byte(text), &config) == nil {
			add("net-conf.json Network", config.Network)
			add("net-conf.json IPv6Network", config.IPv6Network)
			return all
		}
	}
	if cm.Name == "cilium-config" {
		for _, key := range []string{"cluster-pool-ipv4-cidr", "cluster-pool-ipv6-cidr"} {
			add(key, cm.Data[key])
		}
	}
	return all
}

// weaveRange is Weave's default (prog/weave-kube/launch.sh in github.com/weaveworks/weave).
const weaveRange = "10.32.0.0/12"

// WeaveRange is the range of pods that Weave's DaemonSet names, or that it takes if it names none.
func WeaveRange(ds *appsv1.DaemonSet) Configured {
	for _, c := range ds.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == "IPALLOC_RANGE" && e.Value != "" {
				return Configured{Key: e.Name, Range: e.Value}
			}
		}
	}
	return Configured{Key: "IPALLOC_RANGE", Range: weaveRange}
}
