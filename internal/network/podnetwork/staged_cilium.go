package podnetwork

import (
	"fmt"
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
)

// CiliumConfig is the name of Cilium's ConfigMap.
const CiliumConfig = "cilium-config"

// beside has Cilium run beside another network, as its guide for migrations says
// (Documentation/installation/k8s-install-migration.rst in github.com/cilium/cilium): it leaves the
// other's configuration and pods alone, enforces no policies, and uses the node's routes. It also
// leaves nodes untainted while its agent starts, since pods have the other network.
func beside() map[string]string {
	return map[string]string{
		"cni-exclusive": off, "unmanaged-pod-watcher-interval": "0", "enable-policy": "never", "enable-host-legacy-routing": on,
		"set-cilium-node-taints": off,
	}
}

const conflistKey = "write-cni-conf-when-ready"

// StageCilium changes Cilium's ConfigMap to run beside another network with its configuration
// ready, and marks agents and operator, which read it at their start. Other objects are returned as
// they are.
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
			o.GetNamespace(), o.GetName(), conflistKey,
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
