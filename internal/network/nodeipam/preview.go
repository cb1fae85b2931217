package nodeipam

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func (t Trial) Preview() []engine.Change {
	node := "Node " + t.name()
	return []engine.Change{{Verb: "create", Object: node}, {Verb: "delete", Object: node}}
}

func (k SavedNodes) Preview(node string, podCIDRs []string) []engine.Change {
	kept := "ConfigMap " + v1alpha1.SystemNamespace + "/" + k.key(node).Name
	owner := map[string]any{"metadata": "owner: the new Node"}
	return []engine.Change{
		{Verb: "create", Object: kept},
		{Verb: "delete", Object: "Node " + node},
		{Verb: "create", Object: "Node " + node, Body: map[string]any{"spec": map[string]any{"podCIDRs": podCIDRs}, "rest": "as it was"}},
		{Verb: "patch", Object: "Lease kube-node-lease/" + node, Body: owner},
		{Verb: "patch", Object: "CSINode " + node, Body: owner},
		{Verb: "delete", Object: kept},
	}
}
