package podcidr

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// agents are those that watch the migration.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Cluster, c.Migration, c.Spec, c.Own, c.Now = j.Tools.Cluster, j.Spec.Name, j.Spec.Common.Proof, j.Tools.Image, j.Tools.Now
	return c
}

// Observe has somebody told of what happens while runs go on.
func (j *Job) Observe(o lossguard.Observer) { j.agentConfig.Observe(o) }

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// newAgents makes the agents of a job. Their pods move like all others. Where pods of different nodes reach each other through tunnels, Calico
// drops packets for a moment when it gives those other addresses (RP2305): what nobody sends again would be lost.
func (j *Job) newAgents(p *Planner) {
	p.Agents = j.agents().New(len(p.Survey.Nodes))
	if p.Agents != nil {
		p.Agents.Roll, p.Agents.Lossy = true, p.Survey.overlaid()
	}
}

// watched puts agents on every node, unless apply has nothing left to do.
func (p *Planner) watched() []engine.Group {
	if p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Survey.Switched() && len(p.Survey.restartable(forth, p.Tools.now())) == 0 {
		return nil
	}
	return p.Agents.Install()
}

// isAgents reports whether a workload is the pods that agents call.
func isAgents(w *rollout.Workload) bool {
	return w.Kind == rollout.KindDaemonSet && w.Namespace == v1alpha1.SystemNamespace && w.Name == agentset.PodSet
}

// isAgent reports whether a pod is one of those. Users have no interest in how many there are.
func isAgent(pod *corev1.Pod) bool {
	return pod.Namespace == v1alpha1.SystemNamespace && pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleProbe
}

// restartProbedPods restarts the pods that agents call before any others: from then on they call from addresses of the one range, and are called at
// such, while everything else moves.
func (p *Planner) restartProbedPods(d direction) []engine.Group {
	all := p.Survey.fates(d, p.Tools.now()).Restarts
	i := slices.IndexFunc(all, func(w rollout.Workload) bool { return isAgents(&w) })
	if i < 0 {
		return nil
	}
	const title = "the pods that agents call"
	tools := rollout.Tools{Client: p.Tools.client(), Timeout: p.spec().Roll.Timeout.Duration, Now: p.Tools.Now}
	restart := p.renew(tools.Restart(all[i], p.Survey.changes(d, p.Tools.now())), d)
	if r, ok := restart.(renewal); ok {
		restart = &ownStep{r}
	}
	return append([]engine.Group{{Title: title, Steps: []engine.Step{restart}}}, p.settled(d, title)...)
}

// ownStep restarts what replumb itself runs: whether it is there when a plan is made says nothing of the cluster.
type ownStep struct{ renewal }

// ID implements engine.Step.
func (*ownStep) ID() string { return "own/agents" }

// Role implements engine.Cast.
func (*ownStep) Role() engine.Role { return engine.RoleOwn }

// settled waits until every probe is answered from every node again; on the way back for a while.
func (p *Planner) settled(d direction, after string) []engine.Group {
	if d == back {
		return p.Agents.BestEffort(p.Agents.Steady(after))
	}
	return p.Agents.Steady(after)
}

// vacate waits until the agents in the network of pods have left the nodes of a round. What is lost there until their pods are back, the
// nodes themselves still see; it is held against nobody.
func (p *Planner) vacate(h *Home) engine.Step {
	if p.Agents == nil {
		return nil
	}
	return &lossguard.Vacated{Watch: p.Agents.Watch, Node: h.Node.Name, Limit: p.Agents.Wait}
}
