package hop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Barriers prove that every node knows what was written before.
type Barriers struct {
	Client    client.Client
	Migration string
	Pool      *cidr.Pool
	Witness   bridge.Witness
	// Agents are asked alone where only they can tell; nil, if barriers are passed without them.
	Agents bridge.Witness
	Mode   v1alpha1.BarrierMode
	// Wait is how long mode Wait lets pass, Limit how long nodes may take to prove.
	Wait, Limit time.Duration
	Now         func() time.Time
	// Also is the family, beside that of Pool, in which nodes have to know bridges; empty, if there
	// is none.
	Also corev1.IPFamily
	// passing is held by a barrier within a step: each begins by removing the sentinels of others.
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
	return &bridge.Barrier{
		Client: b.Client, Witness: b.Witness, Pool: b.Pool, Migration: b.Migration, Name: name, Limit: b.Limit,
		Also: b.Also,
	}
}

// pass passes a barrier within a step.
func (b *Barriers) pass(ctx context.Context, name string) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	return engine.Drive(ctx, b.Step(name))
}

// Leave passes a barrier behind which no node leads clients to a pod that has left its Services.
// Agents delete what connection tracking has of earlier datagrams; without agents it is given time
// to end.
func (b *Barriers) Leave(ctx context.Context, pod string, at []netip.Addr) error {
	if b.Agents != nil {
		err := b.forget(ctx, pod, at)
		if err == nil || b.Agents == b.Witness || !errors.As(err, new(*engine.DeadlineError)) {
			return err
		}
		// on the way back agents are waited for no longer than they may take
	}
	if err := b.pass(ctx, "pod "+pod); err != nil {
		return err
	}
	return engine.Drive(ctx, &migration.PauseStep{
		Name: "rest/" + pod, Length: RestFor, Now: b.Now,
		About: fmt.Sprintf("Give nodes %s to forget who has sent datagrams to pod %s", RestFor, pod),
	})
}

// forget has agents delete what leads datagrams to a pod.
func (b *Barriers) forget(ctx context.Context, pod string, at []netip.Addr) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	proof := b.Proof("pod " + pod)
	proof.Witness, proof.Forget = b.Agents, at
	return engine.Drive(ctx, proof)
}

// Part waits, without agents, until kube-proxies have deleted what they know of a pod that is no
// endpoint any more: they do so after they have answered for a barrier, and before they answer for
// the next (the end of syncProxyRules, as for Barrier).
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

// RestFor is how long connection tracking may take to forget who has sent datagrams to a pod: the
// default of nf_conntrack_udp_timeout. A client that uses a port again within it is still led
// there.
const RestFor = 30 * time.Second
