package pools

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
)

// releaseBlocks releases all blocks of a range, and unused addresses in them.
func releaseBlocks(c *cluster.Cluster, cidr netip.Prefix) *engine.Write {
	b := blocks{c, cidr}
	return &engine.Write{
		Name: "release/" + cidr.String(), About: fmt.Sprintf("Release the blocks of %s", cidr),
		Holds: b.gone, Write: b.releaseAll,
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "IPAMHandle * of addresses in " + cidr.String()},
			engine.Change{Verb: "delete", Object: "IPAMBlock * of " + cidr.String()},
			engine.Change{Verb: "delete", Object: "BlockAffinity * of " + cidr.String()},
		),
	}
}

type blocks struct {
	cluster *cluster.Cluster
	cidr    netip.Prefix
}

func (s blocks) releaseAll(ctx context.Context) error {
	state, err := calico.Load(ctx, s.cluster)
	if err != nil {
		return err
	}
	pool := slices.IndexFunc(state.Pools, func(p calico.Pool) bool { return p.CIDR == s.cidr })
	if pool >= 0 && !state.Pools[pool].Spec.Disabled {
		return fmt.Errorf("ippool %s is enabled: nodes would take new blocks of it", state.Pools[pool].Name)
	}
	if !state.Ready {
		return engine.NotYet("the datastore of Calico is locked (ClusterInformation default, datastoreReady)")
	}
	now, err := podmove.Occupants(ctx, s.cluster, podmove.Spec{}) // after the state: an address given out meanwhile is seen as used
	if err != nil {
		return err
	}
	for i := range state.Blocks {
		b := &state.Blocks[i]
		if !s.cidr.Contains(b.CIDR.Addr()) {
			continue
		}
		if err := s.release(ctx, b, now); err != nil {
			return err
		}
	}
	return s.leftovers(ctx, state)
}

func (s blocks) release(ctx context.Context, b *calico.Block, now *podmove.Inventory) error {
	for _, a := range b.Allocations {
		one := []netip.Prefix{netip.PrefixFrom(a.Addr, a.Addr.BitLen())}
		if len(now.PodsIn(one))+len(now.TunnelsIn(one)) > 0 {
			return engine.NotYet("%w", &calico.InUseError{Block: b.CIDR, Allocations: []calico.Allocation{a}})
		}
		if err := calico.Free(ctx, s.cluster, a.Addr, a.Handle); err != nil {
			return err
		}
	}
	err := calico.ReleaseBlock(ctx, s.cluster, b.CIDR)
	var used *calico.InUseError
	if errors.As(err, &used) {
		return engine.NotYet("%w", err)
	}
	return err
}

// leftovers are affinities for blocks that are gone.
func (s blocks) leftovers(ctx context.Context, state *calico.State) error {
	for i := range state.Affinities {
		a := &state.Affinities[i]
		if s.cidr.Contains(a.CIDR.Addr()) && state.BlockAt(a.CIDR) == nil {
			if err := calico.ReleaseBlock(ctx, s.cluster, a.CIDR); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s blocks) gone(ctx context.Context) error {
	state, err := calico.Load(ctx, s.cluster)
	if err != nil {
		return err
	}
	for i := range state.Blocks {
		if b := &state.Blocks[i]; s.cidr.Contains(b.CIDR.Addr()) {
			return engine.NotYet("block %s is still there", b.CIDR)
		}
	}
	for i := range state.Affinities {
		if a := &state.Affinities[i]; s.cidr.Contains(a.CIDR.Addr()) {
			return engine.NotYet("blockaffinity %s is still there", a.Name)
		}
	}
	return nil
}
