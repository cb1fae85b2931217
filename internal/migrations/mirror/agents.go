package mirror

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// agents watch from the nodes of the source, where the Migration is.
func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools.Tools, j.Spec.Name, j.Spec.Common.Proof)
}

// watchedBy makes the agents, and what takes away those that an earlier run has left. They are to be on every node of the source.
func (j *Job) watchedBy(ctx context.Context, p *Planner, in *Input) (err error) {
	if in.Nodes, err = cluster.List[corev1.Node](ctx, j.Tools.Cluster, &corev1.NodeList{}); err != nil {
		return err
	}
	if in.AbsentSecrets, err = j.absentSecrets(ctx, j.Tools.Cluster, j.to); err != nil {
		return err
	}
	in.Image = j.agents().Image().Name
	p.Agents = j.agents().New(len(in.Nodes))
	p.Remains, err = j.agents().Left(ctx)
	return err
}

// agentsPhase puts agents on the nodes of the source.
func agentsPhase(groups func(*Planner) []engine.Group) migration.Phase[*Planner] {
	return migration.Phase[*Planner]{Name: agentset.Phase, Title: "Watch from every node of the source", Groups: groups}
}

// watch puts agents on every node, unless the target serves already.
func (p *Planner) watch() []engine.Group {
	if p.Survey.Serving() == v1alpha1.ServingTarget {
		return nil
	}
	return p.Agents.Install()
}

// watchBack puts agents on every node for the way back, if they can be there soon: what the source was rebuilt with meanwhile may keep them.
func (p *Planner) watchBack() []engine.Group {
	if p.Survey.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

// agentChecks are about what watches the migration.
func agentChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		pull.Check("RP3214", func(in Input) []findings.Result { return in.AbsentSecrets }),
		{
			Code: "RP3215", Severity: findings.Warning,
			Claim: "agents can watch from every node of the source",
			Why:   "what clients on a node without an agent lose is not seen",
			Fix: "look there yourself. To keep agents off a node on purpose: kubectl label node NODE " +
				v1alpha1.LabelAgents + "=none, which no kubelet can set",
			Run: func(in Input) []findings.Result {
				if in.Image == "" {
					return nil
				}
				return agentset.Unwatched(in.Nodes)
			},
		},
		{
			Code: "RP3216", Severity: findings.Warning,
			Claim: "the image of agents is named by its digest",
			Why:   "agents run in the network of every node of the source, and who can move a tag in the registry decides what they are",
			Fix:   "name it as NAME@sha256:DIGEST in spec.proof.image",
			Run:   func(in Input) []findings.Result { return agentset.ByTag(in.Image) },
		},
	}
}
