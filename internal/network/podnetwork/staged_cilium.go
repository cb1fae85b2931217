package podnetwork

import (
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
)

// CiliumConfig is the name of Cilium's ConfigMap.
const CiliumConfig = "cilium-config"

// beside is what has Cilium run beside another network, as its own guide for a change of networks says
// (Documentation/installation/k8s-install-migration.rst in github.com/cilium/cilium): it leaves the other's configuration alone and does not delete
// pods that it does not know, its policies do not hold, since it sees nodes in place of the other's pods, and packets go by the node's own
// routes. It does not keep pods from nodes whose agent starts: they have their network from the other.
func beside() map[string]string {
	return map[string]string{
		"cni-exclusive": off, "unmanaged-pod-watcher-interval": "0", "enable-policy": "never", "enable-host-legacy-routing": on,
		"set-cilium-node-taints": off,
	}
}

// conflistKey is where an agent writes the configuration of its plugin.
const conflistKey = "write-cni-conf-when-ready"

// StageCilium has Cilium run beside another network, and its configuration lie ready on each node: it is about the ConfigMap that agents and
// operator read when they start, which is why these are marked as well, and start again when the mark goes. Other objects are none of its
// business, and come back as they are. It is an error if nothing says where the configuration is written.
func StageCilium(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	switch {
	case o.GetKind() == "ConfigMap" && o.GetName() == CiliumConfig:
		return stageConfig(o.DeepCopy())
	case o.GetKind() == "DaemonSet" || o.GetKind() == "Deployment":
		marked := o.DeepCopy()
		return marked, unstructured.SetNestedField(
			marked.Object, on, "spec", "template", "metadata", "annotations", v1alpha1.AnnotationBeside,
		)
	}
	return o, nil
}

func stageConfig(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	at := data[conflistKey]
	if path.Base(at) == "." || path.Base(at) == "/" {
		return nil, fmt.Errorf(
			"ConfigMap %s/%s does not say by %s where Cilium's configuration is written",
			o.GetNamespace(),
			o.GetName(),
			conflistKey,
		)
	}
	for key, value := range beside() {
		data[key] = value
	}
	if data[ReplacesProxyKey] == on { // later, and node by node: see ReplaceProxy
		data[ReplacesProxyKey] = off
	}
	data[conflistKey] = path.Join(path.Dir(at), stagedName(path.Base(at)))
	return o, unstructured.SetNestedStringMap(o.Object, data, "data")
}
