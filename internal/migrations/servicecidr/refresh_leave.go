package servicecidr

import (
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/network/bridge"
)

// renew restarts a workload by rollout, or pod by pod, each leaving its Services first.
func (r refresher) renew(tools rollout.Deps, w *rollout.Workload, c rollout.Changes) engine.Step {
	if w.Leaving || r.before.LeavesFirst(w) {
		return tools.Relieve(*w, c, r.departure)
	}
	return tools.Restart(*w, c)
}

// departure has pods leave their Services, and end once every node has confirmed that.
func departure(barriers *hop.Barriers) *rollout.Departure {
	return &rollout.Departure{
		Leaver: leaving.Leaver{Client: barriers.Client, Migration: barriers.Migration},
		Known:  barriers.Leave,
		Parted: barriers.Part,
		Shown:  (&bridge.Barrier{Migration: barriers.Migration}).Preview,
	}
}
