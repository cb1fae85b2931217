package checks

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/verify/agentset"
)

func agentChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1601", Severity: findings.Warning,
			Claim: "agents can watch from every node",
			Why:   "on a node without an agent neither lost requests nor clients of old addresses are seen",
			Fix: "look there yourself, or move what runs there first. To keep agents off a node on purpose: kubectl label node NODE " +
				"replumb.dev.node-restriction.kubernetes.io/agents=none, which no kubelet can set",
			Run: func(in Input) []findings.Result {
				if in.Image == "" {
					return findings.Skip(agentset.NoAgents)
				}
				return agentset.Unwatched(in.Snapshot.Nodes)
			},
		},
		{
			Code: "RP1602", Severity: findings.Warning,
			Claim: "the image of agents is named by its digest",
			Why:   "agents run as root in the network of every node, and who can move a tag in the registry decides what they are",
			Fix:   "name it as NAME@sha256:DIGEST in spec.image",
			Run:   func(in Input) []findings.Result { return agentset.ByTag(in.Image) },
		},
		pull.Check("RP1603", func(in Input) []findings.Result { return in.AbsentSecrets }),
		{
			Code: "RP1604", Severity: findings.Warning,
			Claim: "bridges follow their Services between commands",
			Why: "without the Deployment overlap, bridges follow their Services only while a command runs: when an API server is replaced, or " +
				"a Service without selector fails over, old addresses lead to what is gone, and new ones may as well",
			Fix: "have that Deployment run: with the default spec.serviceCIDR.follower, and an image in spec.image that nodes can pull; or finish " +
				"soon, and run apply again after each such change",
			Run: func(in Input) []findings.Result {
				switch {
				case !in.bridging():
					return findings.Skip(noMoves)
				case in.Overlap:
					return nil
				case in.spec().Follower == v1alpha1.FollowerDisabled:
					return []findings.Result{findings.Failed("", "spec.serviceCIDR.follower is Disabled")}
				}
				return []findings.Result{findings.Failed("", "neither spec.image nor this build names an image for it")}
			},
		},
	}
}
