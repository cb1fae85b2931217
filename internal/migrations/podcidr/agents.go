package podcidr

import (
	"context"

	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// agents are those that watch the migration.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Cluster, c.Migration, c.Spec, c.Own, c.Now = j.Tools.Cluster, j.Spec.Name, j.Spec.Common.Proof, j.Tools.Image, j.Tools.Now
	return c
}

// Observe has an observer follow what happens while runs go on.
func (j *Job) Observe(o lossguard.Observer) { j.agentConfig.Observe(o) }

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// newAgents makes the agents of a job. Their pods move like all others. Where pods of different nodes reach each other through tunnels,
// Calico drops packets for a moment when it gives those other addresses by itself (RP2306): what is not sent again would be lost.
func (j *Job) newAgents(s podmove.Strategy) *lossguard.Agents {
	a := j.agents().New(len(s.Shared().Nodes))
	if a != nil {
		a.Roll, a.Lossy = true, s.Overlaid()
	}
	return a
}
