package noderanges

import (
	"context"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// evictStep evicts what is still on a node with another address: pods of DaemonSets that no taint keeps away.
type evictStep struct {
	node
	// left are the ranges that pods leave.
	left  []netip.Prefix
	tools rollout.Tools
}

var (
	_ engine.Waiter    = (*evictStep)(nil)
	_ engine.Previewer = (*evictStep)(nil)
)

// ID implements engine.Step.
func (s *evictStep) ID() string { return "renew/" + s.name }

// Title implements engine.Step.
func (s *evictStep) Title() string {
	return "Restart what is on node " + s.name + " whatever its taints"
}

// Role implements engine.Cast.
func (*evictStep) Role() engine.Role { return engine.RoleMove }

// Waits implements engine.Waiter: what is asked for goes on without replumb, and ends at once when a run is cancelled.
func (*evictStep) Waits() {}

// Deadline implements engine.Timed.
func (s *evictStep) Deadline() time.Duration { return s.tools.Timeout }

// State implements engine.Step.
func (s *evictStep) State(ctx context.Context) (engine.State, error) {
	return engine.StateOf(s.Verify(ctx))
}

// Preview implements engine.Previewer. Which pods are left by then is not known before.
func (s *evictStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "evict", Object: "Pod */* that is left on node " + s.name}}, nil
}

// stale are pods with an address that is not of the node's range.
func (s *evictStep) stale(ctx context.Context) (stale []corev1.Pod, err error) {
	home := nodeipam.Range(s.ranges)
	pods, err := s.pods(ctx)
	for i := range pods {
		for _, a := range calico.PodAddresses(&pods[i]) {
			if a.Is4() && !home.Contains(a) {
				stale = append(stale, pods[i])
			}
		}
	}
	return stale, err
}

// Do implements engine.Step.
func (s *evictStep) Do(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err != nil {
		return err
	}
	changes := rollout.Changes{Addresses: s.left, AddressesUntil: s.tools.Now()}
	for i := range stale {
		if err := s.tools.Evict(&stale[i], changes).Do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Verify implements engine.Step.
func (s *evictStep) Verify(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err == nil && len(stale) > 0 {
		return engine.NotYet("pod %s/%s on node %s has another address", stale[0].Namespace, stale[0].Name, s.name)
	}
	return err
}
