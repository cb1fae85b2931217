package podnetwork

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Keys of cilium-config that say what is to become of kube-proxy.
const (
	// ReplacesProxyKey has agents do the work of kube-proxy.
	ReplacesProxyKey = "kube-proxy-replacement"
	// ProxyHealthKey is the address of an agent's health in kube-proxy's place. It is bound once,
	// at the start: a kube-proxy that has it keeps it (registerKubeProxyHealthzHTTPService in
	// daemon/healthz).
	ProxyHealthKey = "kube-proxy-replacement-healthz-bind-address"
	// HostOnlyKey has pods' packets translated, and not their sockets: connections opened before go
	// on only where it is on (ENABLE_PER_PACKET_LB in bpf/bpf_lxc.c).
	HostOnlyKey = "bpf-lb-sock-hostns-only"

	on, off = "true", "false"
)

// Names of the CiliumNodeConfigs, of which a later one by name counts.
const (
	proxyConfig       = "replumb-kube-proxy"
	proxyHealthConfig = "replumb-kube-proxy-healthz"
)

// ReplaceProxy are CiliumNodeConfigs that have agents on marked nodes do kube-proxy's work from
// their next start (Documentation/configuration/per-node-config.rst). health is their address,
// which kube-proxy has while it is on the node.
func ReplaceProxy(namespace, health string) []*unstructured.Unstructured {
	all := []*unstructured.Unstructured{
		nodeConfig(namespace, proxyConfig, map[string]any{ReplacesProxyKey: on, ProxyHealthKey: ""},
			v1alpha1.ProxyBeside, v1alpha1.ProxyLeaving, v1alpha1.ProxyReplaced),
	}
	if health != "" {
		all = append(
			all,
			nodeConfig(namespace, proxyHealthConfig, map[string]any{ProxyHealthKey: health}, v1alpha1.ProxyLeaving, v1alpha1.ProxyReplaced),
		)
	}
	return all
}

func nodeConfig(namespace, name string, defaults map[string]any, marks ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNodeConfig",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec": map[string]any{
			"defaults": defaults,
			"nodeSelector": map[string]any{"matchExpressions": []any{
				map[string]any{"key": v1alpha1.LabelKubeProxy, "operator": "In", "values": marks},
			}},
		},
	}}
}

// KeepOff is an affinity that keeps pods off nodes without kube-proxy, beside its other terms.
func KeepOff(was *corev1.Affinity) *corev1.Affinity {
	return AlsoRequired(was, corev1.NodeSelectorRequirement{
		Key:      v1alpha1.LabelKubeProxy,
		Operator: corev1.NodeSelectorOpNotIn,
		Values:   []string{v1alpha1.ProxyLeaving, v1alpha1.ProxyReplaced},
	})
}

// AlsoRequired adds a condition to each term of an affinity, since one term is enough for a node.
func AlsoRequired(was *corev1.Affinity, condition corev1.NodeSelectorRequirement) *corev1.Affinity {
	out := was.DeepCopy()
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	for i := range required.NodeSelectorTerms {
		t := &required.NodeSelectorTerms[i]
		t.MatchExpressions = append(t.MatchExpressions, condition)
	}
	out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	return out
}

// Remembered is an affinity as AnnotationAffinity has it.
func Remembered(a *corev1.Affinity) (string, error) {
	body, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("an affinity: %w", err)
	}
	return string(body), nil
}

// Recall reads AnnotationAffinity. None is nil.
func Recall(text string) (*corev1.Affinity, error) {
	var a *corev1.Affinity
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationAffinity, err)
	}
	return a, nil
}
