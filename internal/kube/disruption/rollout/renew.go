package rollout

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// Renewal names the pods of a node that are evicted in place: those of DaemonSets.
type Renewal struct {
	Node string
	// Stale reports whether a pod has an address that it is not to have.
	Stale func(*corev1.Pod) bool
	Left  []netip.Prefix
}

// Renew makes the step that evicts what is still on a node and stale, and waits until nothing is.
func (t Deps) Renew(r Renewal) engine.Step { return &renewStep{Deps: t, renewal: r} }

type renewStep struct {
	Deps
	renewal Renewal
}

var (
	_ engine.Waiter    = (*renewStep)(nil)
	_ engine.Previewer = (*renewStep)(nil)
)

func (s *renewStep) ID() string { return "renew/" + s.renewal.Node }

func (s *renewStep) Title() string {
	return "Restart what is on node " + s.renewal.Node + " whatever its taints"
}

func (*renewStep) Role() engine.StepRole { return engine.RoleMove }

// Waits lets an interrupted run end at once: evictions go on without replumb.
func (*renewStep) Waits() {}

func (s *renewStep) Deadline() time.Duration { return s.timeout() }

func (s *renewStep) State(ctx context.Context) (engine.State, error) {
	return engine.StateOf(s.Verify(ctx))
}

func (s *renewStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "evict", Object: "Pod */* that is left on node " + s.renewal.Node}}, nil
}

func (s *renewStep) stale(ctx context.Context) (stale []corev1.Pod, err error) {
	err = each(ctx, s.Client, &corev1.PodList{}, func(p *corev1.Pod) {
		if s.renewal.Stale(p) {
			stale = append(stale, *p)
		}
	}, client.MatchingFields{"spec.nodeName": s.renewal.Node})
	if err != nil {
		return nil, fmt.Errorf("pods of node %s: %w", s.renewal.Node, err)
	}
	return stale, nil
}

func (s *renewStep) Do(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err != nil {
		return err
	}
	changes := Changes{Addresses: s.renewal.Left, AddressesUntil: s.now()}
	for i := range stale {
		if err := s.Evict(&stale[i], changes).Do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *renewStep) Verify(ctx context.Context) error {
	stale, err := s.stale(ctx)
	if err == nil && len(stale) > 0 {
		return engine.NotYet("pod %s/%s on node %s has another address", stale[0].Namespace, stale[0].Name, s.renewal.Node)
	}
	return err
}
