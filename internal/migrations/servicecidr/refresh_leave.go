package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
)

// restFor is how long connection tracking is given to forget who has sent datagrams to a pod, where no agent deletes that: the default of
// nf_conntrack_udp_timeout. A client that uses a port again within it is still led there.
const restFor = 30 * time.Second

// renew restarts a workload: by rollout, or pod by pod, each of which leaves its Services first.
func (r refresher) renew(tools rollout.Deps, w *rollout.Workload, c rollout.Changes) engine.Step {
	if w.Leaving || r.before.leavesFirst(w) {
		return tools.Relieve(*w, c, r.departure)
	}
	return tools.Restart(*w, c)
}

// before says which Services are before workloads, for many of these.
type before struct {
	policy v1alpha1.LeaveFirstPolicy
	unfit  func(*rollout.Workload) string
	// services are all, dns those of cluster DNS.
	services, dns leaving.Index
}

// before looks at the Services once. Nothing that it says is of a later survey.
func (s *Survey) before(state *rollout.State) *before {
	var all, dns []corev1.Service
	for _, e := range slices.Concat(s.Moves, s.Pins, s.Stays) {
		all = append(all, *e.Service)
		if s.DNS[e.Key()] {
			dns = append(dns, *e.Service)
		}
	}
	return &before{
		policy: s.Spec.Refresh.LeaveFirst, unfit: state.Unfit(), services: leaving.NewIndex(all), dns: leaving.NewIndex(dns),
	}
}

// leavesFirst reports whether the pods of a workload shall leave their Services before they end, and can. Of a datagram that is lost its
// client hears nothing.
func (b *before) leavesFirst(w *rollout.Workload) bool {
	if b.policy == v1alpha1.LeaveFirstNone || b.unfit(w) != "" {
		return false
	}
	services := b.services.Selecting(w.Namespace, w.PodLabels)
	return leaving.UDP(services) || b.policy == v1alpha1.LeaveFirstAll && len(services) > 0
}

// servesDNS reports whether a workload is behind cluster DNS.
func (b *before) servesDNS(w *rollout.Workload) bool {
	return len(b.dns.Selecting(w.Namespace, w.PodLabels)) > 0
}

// departure has pods leave their Services, and end once every node has confirmed that. The barriers are those that a planner makes.
func departure(c client.Client, name string, to engine.Direction, planner func() *Planner) *rollout.Departure {
	barriers := sync.OnceValue(func() *barriers { return planner().barriers(to) })
	return &rollout.Departure{
		Leaver: leaving.Leaver{Client: c, Migration: name},
		Known:  func(ctx context.Context, pod string, at []netip.Addr) error { return barriers().leave(ctx, pod, at) },
		Parted: func(ctx context.Context, pod string) error { return barriers().part(ctx, pod) },
		Shown:  func() ([]engine.Change, error) { return (&bridge.Barrier{Migration: name}).Preview() },
	}
}

// leave passes a barrier behind which no node leads clients to a pod that has left its Services, datagrams of earlier clients included. Agents
// delete what connection tracking has of those. Without agents they are given time to end.
func (b *barriers) leave(ctx context.Context, pod string, at []netip.Addr) error {
	if b.agents != nil {
		err := b.forget(ctx, pod, at)
		if err == nil || b.agents == b.witness || !errors.As(err, new(*engine.DeadlineError)) {
			return err
		}
		// On the way back they are waited for no longer than they may take.
	}
	if err := b.pass(ctx, "pod "+pod); err != nil {
		return err
	}
	return engine.Drive(ctx, &migration.PauseStep{
		Name: "rest/" + pod, Length: restFor, Now: b.now,
		About: fmt.Sprintf("Give nodes %s to forget who has sent datagrams to pod %s", restFor, pod),
	})
}

// forget has agents delete what leads datagrams to a pod.
func (b *barriers) forget(ctx context.Context, pod string, at []netip.Addr) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	proof := b.proof("pod " + pod)
	proof.Witness, proof.Forget = b.agents, at
	return engine.Drive(ctx, proof)
}

// part waits, without agents, until kube-proxies have deleted what they know of a pod that is no endpoint any more: they do so after they have
// answered for a barrier, and before they answer for the next (the end of syncProxyRules, as for Barrier).
func (b *barriers) part(ctx context.Context, pod string) error {
	if b.agents != nil {
		return nil
	}
	for range 2 {
		if err := b.pass(ctx, "pod "+pod); err != nil {
			return err
		}
	}
	return nil
}
