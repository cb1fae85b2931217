package podcidr

import (
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools, j.Spec.Name, j.Spec.Common.Proof)
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
