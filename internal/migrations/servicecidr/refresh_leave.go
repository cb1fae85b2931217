package servicecidr

import (
	"context"
	"net/netip"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/leaving"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/network/bridge"
)

// renew restarts a workload: by rollout, or pod by pod, each of which leaves its Services first.
func (r refresher) renew(tools rollout.Tools, w *rollout.Workload, c rollout.Changes) engine.Step {
	if w.Leaving || r.before.LeavesFirst(w) {
		return tools.Relieve(*w, c, r.departure)
	}
	return tools.Restart(*w, c)
}

// departure has pods leave their Services, and end once every node has confirmed that. The barriers are those that a planner makes.
func departure(c client.Client, name string, to engine.Direction, planner func() *Planner) *rollout.Departure {
	barriers := sync.OnceValue(func() *Barriers { return planner().barriers(to) })
	return &rollout.Departure{
		Leaver: leaving.Leaver{Client: c, Migration: name},
		Known:  func(ctx context.Context, pod string, at []netip.Addr) error { return barriers().Leave(ctx, pod, at) },
		Parted: func(ctx context.Context, pod string) error { return barriers().Part(ctx, pod) },
		Shown:  func() ([]engine.Change, error) { return (&bridge.Barrier{Migration: name}).Preview() },
	}
}
