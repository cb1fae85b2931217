package agentset

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/workload"
)

// NoAgents is why checks about agents are skipped.
const NoAgents = "no agents are to run"

// Unwatched are nodes that no agent can run on, and those that ask for none by a label that their
// kubelet can set.
func Unwatched(nodes []corev1.Node) []findings.Result {
	var out []findings.Result
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelTrial] != "" { // it is no machine
			continue
		}
		for _, r := range workload.Foreign() {
			if value := n.Labels[r.Key]; slices.Contains(r.Values, value) {
				out = append(out, findings.Failed("Node "+n.Name, "no agent can run on node %s: its label %s is %s", n.Name, r.Key, value))
			}
		}
		if n.Labels[v1alpha1.LabelAgentsBefore] != "" || n.Annotations[v1alpha1.LabelAgentsBefore] != "" {
			out = append(out, findings.Failed("Node "+n.Name, "node %s has %s, which its kubelet can set and which says nothing",
				n.Name, v1alpha1.LabelAgentsBefore))
		}
	}
	return out
}

// ByTag finds an image named by a tag: users who may push to its registry decide what runs.
func ByTag(image string) []findings.Result {
	switch {
	case image == "":
		return findings.Skip("no image of replumb is to run")
	case strings.Contains(image, "@sha256:"):
		return nil
	}
	return []findings.Result{findings.Failed("", "image %s is named by a tag", image)}
}
