package servicecidr

import (
	"context"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
)

var (
	_ migration.Plans = (*Planner)(nil)
)

func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

func (p *Planner) Early() string {
	if pending := p.awaited(); len(pending) > 0 {
		return fmt.Sprintf("%s not moved yet, the first is %s", english.Plural(len(pending), "Service", ""), pending[0].Key())
	}
	if n := p.Refresh.Due(); n > 0 {
		return fmt.Sprintf("%d workloads carry old addresses and have not been restarted", n)
	}
	if from := p.spec().From; p.Survey.Bitmap && len(from) > 0 && p.Survey.gives(from) {
		return fmt.Sprintf("the API servers still have %s as --service-cluster-ip-range", joinRanges(from))
	}
	var names []string
	for _, c := range p.Survey.retiring() {
		names = append(names, "servicecidr "+c.Name)
	}
	if len(names) > 0 {
		return fmt.Sprintf("the old range is not retired: %s is still there", listing(names))
	}
	return ""
}

// awaited are the Services that apply has yet to move.
func (p *Planner) awaited() []*Entry {
	return slices.DeleteFunc(p.Survey.Pending(), func(e *Entry) bool { return e.Place == Waiting && p.Survey.endless(e) })
}

func (p *Planner) Left() string {
	if early := p.Early(); early != "" {
		return early
	}
	if p.Survey.probeStays() {
		return "what agents call has not moved yet"
	}
	if n := len(p.Survey.Departed); n > 0 {
		return "what there is of " + english.Plural(n, "Service", "") + " that left the migration is still there"
	}
	return "" // what Services have left behind that were deleted meanwhile, the next command removes: there may always be one more
}

// movesAhead reports whether what comes after phase kubelets of apply cannot be planned yet. For the few Services that have appeared
// meanwhile it is planned as if they had moved, and corrected in the next round: where one comes after the other there would be no end.
func (p *Planner) movesAhead() bool {
	known := func(e *Entry) bool { return !p.Survey.bornAfter(e) }
	return slices.ContainsFunc(p.Survey.Pending(), known) || p.Survey.probeStays() ||
		(len(p.Survey.DNSMoves()) > 0 && p.Migration.Status.NodesRepointedAt == nil)
}

// returnsAhead reports whether what comes after phase kubelets of a rollback cannot be planned yet.
func (p *Planner) returnsAhead() bool {
	dns := false
	for _, e := range p.Survey.everything() {
		if e.away() && !e.settled() {
			return true
		}
		dns = dns || (e.Touched() && !e.settled() && p.Survey.DNS[e.Key()])
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
		return v1alpha1.Counts{Total: len(p.Survey.Moves), Stays: len(p.Survey.Stays)}, p.Survey.TierCounts(nil)
	}
	return p.Survey.Counts(), p.Survey.TierCounts(nil)
}

// RunBeside implements migration.Plans: where nothing in the cluster does so, bridges are kept in step until stop is called, if that takes
// more than hops do. Two that write at once would be in each other's way.
func (p *Planner) RunBeside(ctx context.Context) (stop func() error) {
	if p.Tools.Cluster == nil || p.Overlap != nil || !p.Survey.AnyMirrored() {
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
