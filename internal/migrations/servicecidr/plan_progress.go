package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
)

var _ migration.Plans = (*Planner)(nil)

func (p *Planner) Counts() v1alpha1.Counts { return p.Inventory.Counts() }

func (p *Planner) Early() string {
	if pending := p.awaited(); len(pending) > 0 {
		return fmt.Sprintf("%s not moved yet, the first is %s", english.Plural(len(pending), "Service", ""), pending[0].Key())
	}
	if n := p.Refresh.Due(); n > 0 {
		return fmt.Sprintf("%d workloads carry old addresses and have not been restarted", n)
	}
	if from := p.spec().From; p.Inventory.Bitmap && len(from) > 0 && ranges.GivesOutAllOf(p.Inventory, from) {
		return fmt.Sprintf("the API servers still have %s as --service-cluster-ip-range", lists.Join(from, ", "))
	}
	var names []string
	for _, c := range ranges.ToRetire(p.Inventory) {
		names = append(names, "servicecidr "+c.Name)
	}
	if len(names) > 0 {
		return fmt.Sprintf("the old range is not retired: %s is still there", services.FirstTen(names))
	}
	return ""
}

func (p *Planner) awaited() []*services.Entry {
	return slices.DeleteFunc(p.Inventory.Pending(), func(e *services.Entry) bool { return e.Position == services.Waiting && endless(p.Inventory, e) })
}

func (p *Planner) Left() string {
	if early := p.Early(); early != "" {
		return early
	}
	if p.Inventory.ProbesPending() {
		return "what agents call has not moved yet"
	}
	if n := len(p.Inventory.Removed); n > 0 {
		return "what there is of " + english.Plural(n, "Service", "") + " that left the migration is still there"
	}
	return "" // what Services have left behind that were deleted meanwhile, the next command removes: there may always be one more
}

// movesAhead reports whether what follows phase kubelets of apply cannot be planned yet. Services
// that have appeared meanwhile count as moved, or there would be no end.
func (p *Planner) movesAhead() bool {
	known := func(e *services.Entry) bool { return !bornAfter(p.Inventory, e) }
	return slices.ContainsFunc(p.Inventory.Pending(), known) || p.Inventory.ProbesPending() ||
		(len(p.Inventory.DNSMoves()) > 0 && p.Migration.Status.NodesRepointedAt == nil)
}

// returnsAhead is movesAhead for a rollback.
func (p *Planner) returnsAhead() bool {
	dns := false
	for _, e := range p.Inventory.All() {
		if e.Away() && !e.CannotReturn() && !e.IsStranded() {
			return true
		}
		dns = dns || (e.Touched() && !e.CannotReturn() && p.Inventory.DNS[e.Key()])
	}
	return dns && p.Migration.Status.NodesRepointedAt == nil
}

func (p *Planner) Arrive(ctx context.Context) error {
	if !p.frozen() {
		return nil
	}
	return freeze.Clear(ctx, p.Tools.Client(), p.spec().Name)
}

func (p *Planner) Summary(phase v1alpha1.Phase, _ v1alpha1.Counts) (v1alpha1.Counts, []v1alpha1.TierStatus) {
	switch phase {
	case v1alpha1.PhaseFinished:
		counts := p.Migration.Status.Counts
		counts.Bridged = 0
		return counts, p.Migration.Status.Tiers
	case v1alpha1.PhaseRolledBack:
		return v1alpha1.Counts{Total: len(p.Inventory.Moves), Stays: len(p.Inventory.Stays)}, p.Inventory.TierCounts(nil)
	}
	return p.Inventory.Counts(), p.Inventory.TierCounts(nil)
}

// RunBeside keeps bridges in step until stop is called, which takes replumb off control planes.
func (p *Planner) RunBeside(ctx context.Context) (stop func() error) {
	follows := p.follow(ctx)
	return func() error { return errors.Join(follows(), p.leaveEtcd(ctx)) }
}

// follow keeps bridges in step, unless something in the cluster does.
func (p *Planner) follow(ctx context.Context) (stop func() error) {
	if p.Tools.Cluster == nil || p.Overlap != nil || !p.Inventory.AnyMirrored() {
		return func() error { return nil }
	}
	var outdated error
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		bridge.Follow(ctx, p.Tools.Cluster, p.spec().Name, func(err error) { outdated = err })
	}()
	return func() error {
		cancel()
		<-done
		if outdated != nil {
			return fmt.Errorf("copies of endpoints were out of date: %w", outdated)
		}
		return nil
	}
}
