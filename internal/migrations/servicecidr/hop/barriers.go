package hop

import (
	"cmp"
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
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Barriers prove that every node knows what was written before.
type Barriers struct {
	Client    client.Client
	Migration string
	Pool      *cidr.Allocator
	Witness   bridge.SentinelWatcher
	// Agents are asked alone where only they can tell; nil, if barriers are passed without them.
	Agents bridge.SentinelWatcher
	Mode   v1alpha1.BarrierMode
	// Wait is for mode Wait, Limit for nodes that have to prove.
	Wait, Limit time.Duration
	Now         func() time.Time
	// Connect has agents prove it by connections.
	Connect bool
	// Also is a second family in which nodes have to know bridges; may be empty.
	Also corev1.IPFamily
	// passing serializes barriers within steps: each begins by removing sentinels of others.
	passing sync.Mutex
}

// Step is the barrier after what is named. In mode Wait it proves nothing, and a finding says so.
func (b *Barriers) Step(name string) engine.Step {
	if b.Mode == v1alpha1.BarrierWait {
		return &migration.PauseStep{
			Name: "barrier/" + name, Length: b.Wait, Now: b.Now,
			About: fmt.Sprintf("Give nodes %s to learn the bridges of %s (not proven)", b.Wait, name),
		}
	}
	return b.Proof(name)
}

func (b *Barriers) Proof(name string) *bridge.Barrier {
	proof := &bridge.Barrier{
		Client: b.Client, Witness: b.Witness, Pool: b.Pool, Migration: b.Migration, Name: name, Limit: b.Limit,
		Also: b.Also,
	}
	if b.Connect {
		proof.Connect = &bridge.Connect{
			Selector: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleProbe}, Pairs: func() []bridge.AddressPair { return nil },
		}
	}
	return proof
}

// Answering is Step for Services that have to answer at both of their addresses.
func (s *Steps) Answering(name string, all []*services.Entry) engine.Step {
	step := s.Barriers.Step(name)
	proof, is := step.(*bridge.Barrier)
	if !is {
		return step
	}
	if !slices.ContainsFunc(all, func(e *services.Entry) bool { return !e.KeepsItself() }) {
		proof.About = "Prove that every ready node knows both addresses of " + name
	}
	if proof.Connect != nil {
		proof.Connect.Pairs = func() []bridge.AddressPair { return s.pairs(all) }
	}
	return step
}

// pairs are the addresses of Services with a port for TCP. Others are known with them: nodes take
// what was written before in the order in which it was written.
func (s *Steps) pairs(all []*services.Entry) (pairs []bridge.AddressPair) {
	for _, e := range all {
		p := s.Tracker.Of(e)
		at, beside := p.Old, p.New
		if p.Position == services.Moved {
			at, beside = p.New, p.Old
		}
		for _, port := range e.Service.Spec.Ports {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
				number := uint16(port.Port) //nolint:gosec // a port
				pairs = append(pairs, bridge.AddressPair{At: netip.AddrPortFrom(at, number), Beside: netip.AddrPortFrom(beside, number)})
				break
			}
		}
	}
	return pairs
}

func (b *Barriers) pass(ctx context.Context, name string) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	return engine.Drive(ctx, b.Step(name))
}

// Leave passes a barrier behind which no node leads clients to a pod that has left its Services.
// Without agents, which delete old entries of connection tracking, these get time to end.
func (b *Barriers) Leave(ctx context.Context, pod string, at []netip.Addr) error {
	if b.Agents != nil {
		err := b.forget(ctx, pod, at)
		if err == nil || b.Agents == b.Witness || !errors.As(err, new(*engine.DeadlineError)) {
			return err
		}
	}
	if err := b.pass(ctx, "pod "+pod); err != nil {
		return err
	}
	return engine.Drive(ctx, &migration.PauseStep{
		Name: "rest/" + pod, Length: RestFor, Now: b.Now,
		About: fmt.Sprintf("Give nodes %s to forget who has sent datagrams to pod %s", RestFor, pod),
	})
}

func (b *Barriers) forget(ctx context.Context, pod string, at []netip.Addr) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	proof := b.Proof("pod " + pod)
	proof.Witness, proof.Forget = b.Agents, at
	return engine.Drive(ctx, proof)
}

// Part waits, without agents, until kube-proxies have deleted what they know of a former endpoint,
// which is after they answer for a barrier (the end of syncProxyRules, as for Barrier).
func (b *Barriers) Part(ctx context.Context, pod string) error {
	if b.Agents != nil {
		return nil
	}
	for range 2 {
		if err := b.pass(ctx, "pod "+pod); err != nil {
			return err
		}
	}
	return nil
}

// RestFor is the default of nf_conntrack_udp_timeout: a client that reuses a port within it is
// still led to its former pod.
const RestFor = 30 * time.Second
