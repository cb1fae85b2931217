package nodes

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools, j.Spec.Name, j.Spec.Common.Proof)
}

// newAgents makes the agents of a job. Cluster DNS moves with all other pods.
func (j *Job) newAgents(s *Survey) *lossguard.Agents {
	a := j.agents().New(len(s.Nodes))
	if a != nil {
		a.Roll, a.Ends = true, true
	}
	return a
}

// agentsPhase puts agents on nodes, before anything is changed.
func agentsPhase(groups func(*Planner) []engine.Group) migration.Phase[*Planner] {
	return migration.Phase[*Planner]{Name: agentset.Phase, Title: "Watch from every node", Groups: groups}
}

// watch puts agents on every node, unless there is nothing left to do that they could see.
func (p *Planner) watch() []engine.Group {
	if len(p.Survey.outstanding(p.terminatesEach())) == 0 {
		return nil
	}
	return p.Agents.Install()
}

// watchFinish puts agents on every node, if nodes are still to end.
func (p *Planner) watchFinish() []engine.Group {
	if len(p.Survey.outstanding(true)) == 0 {
		return nil
	}
	return p.Agents.Install()
}

// watchBack puts agents on every node, if they can be there soon.
func (p *Planner) watchBack() []engine.Group {
	if !p.Whole() {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

// steadyBack waits for a while until every probe is answered again.
func (p *Planner) steadyBack(after string) []engine.Group {
	return p.Agents.BestEffort(p.Agents.Steady(after))
}

// dismiss takes agents away: they learn where API servers are when they begin, and those are about to move.
func (p *Planner) dismiss() []engine.Group {
	if p.Agents == nil || p.spec().ControlPlane == nil {
		return nil
	}
	return p.Agents.Dismiss()
}

// agentChecks are about what watches the migration from every node.
func agentChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3210", Severity: findings.Warning,
			Claim: "agents can watch from every node",
			Why:   "what clients on a node without an agent lose is not seen",
			Fix: "look there yourself. To keep agents off a node on purpose: kubectl label node NODE " +
				v1alpha1.LabelAgents + "=none, which no kubelet can set",
			Run: func(in Input) []findings.Result {
				if in.Image == "" {
					return nil
				}
				return agentset.Unwatched(in.Survey.Nodes)
			},
		},
		{
			Code: "RP3211", Severity: findings.Warning,
			Claim: "the image of agents is named by its digest",
			Why:   "agents run in the network of every node, and who can move a tag in the registry decides what they are",
			Fix:   "name it as NAME@sha256:DIGEST in spec.proof.image",
			Run:   func(in Input) []findings.Result { return agentset.ByTag(in.Image) },
		},
	}
}

// roles are those that this job takes.
func (j *Job) roles() cluster.Roles {
	purposes := []cluster.Purpose{cluster.View, cluster.Operate}
	if j.agents().Runs() {
		purposes = append(purposes, cluster.Agents)
	}
	return append(Roles().Of(purposes...), migration.RolesFor(j.Migration)...)
}
