package lossguard

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Phase puts agents on nodes first. place is such as " of the source"; empty for one cluster.
func Phase[P any](place string, groups func(P) []engine.Group) migration.Phase[P] {
	return migration.Phase[P]{Name: agentset.Phase, Title: "Watch from every node" + place, Groups: groups}
}

// Checks find nodes without agents, and an image named by a tag. see returns the agents' image,
// empty for none, and the nodes.
func Checks[In any](unwatched, byTag, place string, see func(In) (image string, nodes []corev1.Node)) []findings.Check[In] {
	return []findings.Check[In]{
		{
			Code: unwatched, Severity: findings.Warning,
			Claim: "agents can watch from every node" + place,
			Why:   "on a node without an agent lost requests are not seen",
			Fix: "look there yourself. To keep agents off a node on purpose: kubectl label node NODE " +
				v1alpha1.LabelAgents + "=none, which no kubelet can set",
			Run: func(in In) []findings.Result {
				image, nodes := see(in)
				if image == "" {
					return findings.Skip(agentset.NoAgents)
				}
				return agentset.Unwatched(nodes)
			},
		},
		{
			Code: byTag, Severity: findings.Warning,
			Claim: "the image of agents is named by its digest",
			Why: "agents run in the network of every node" + place +
				", and who can move a tag in the registry decides what they are",
			Fix: "name it as NAME@sha256:DIGEST in spec.image",
			Run: func(in In) []findings.Result {
				image, _ := see(in)
				return agentset.ByTag(image)
			},
		},
	}
}
