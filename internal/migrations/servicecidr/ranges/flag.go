package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// FlagPlan changes a Service range that is a flag. API servers give out that range alone, so they
// get it before the first Service moves or returns (docs/design/versions.md).
type FlagPlan struct {
	*RangePlan
}

var (
	_ RangeSteps = (*RangePlan)(nil)
	_ RangeSteps = FlagPlan{}
)

// Extend has the API servers give out addresses of the target.
func (f FlagPlan) Extend() []engine.Group {
	return f.change(f.Inventory.Spec.To[0], f.Inventory.Spec.From, Repointed, false)
}

// Reopen has API servers give out the old range; unknowns pass if they never had another.
func (f FlagPlan) Reopen() []engine.Group {
	from := f.Inventory.Spec.From
	if len(from) == 0 {
		return nil
	}
	begun := slices.ContainsFunc(f.Inventory.All(), (*services.Entry).Begun)
	return f.change(from[0], f.Inventory.Spec.To[:1], restored, !begun && GivesOutAllOf(f.Inventory, from))
}

// change gives API servers another range. Until the addresses that replumb needs in it are
// reserved, a policy keeps them from others.
func (f FlagPlan) change(want netip.Prefix, other []netip.Prefix, confirmation string, lenient bool) []engine.Group {
	var steps []engine.Step
	guard := f.Guard(want.String(), unreservedIn(f.Inventory, want))
	if len(guard.Owned) > 0 {
		steps = append(steps, guard)
	}
	steps = append(steps, f.apiServers([]netip.Prefix{want}, other, confirmation, lenient)...)
	if len(guard.Owned) > 0 || !GivesOutAllOf(f.Inventory, []netip.Prefix{want}) {
		steps = append(steps, givesOut{client: f.Client, migration: f.Inventory.Spec.Name, want: want}.step())
	}
	return engine.InOrder(append(steps, CommitReservations{Client: f.Client, Inventory: f.Inventory, In: want}.Step(), guard.Undo())...)
}

// Repoint looks once more; no Service is given an address of the old range any more.
func (f FlagPlan) Repoint() []engine.Group {
	to, servers := f.Inventory.Spec.To[:1], f.Look()
	return engine.InOrder(
		f.vacant(),
		&engine.Wait{
			Name: "verify/api-servers", About: fmt.Sprintf("Verify that every API server has %s as --service-cluster-ip-range", FlagText(to)),
			For: f.OnRange(servers, to, Repointed, false), Limit: f.Wait, Remark: servers.Remark,
		},
	)
}

func (f FlagPlan) vacant() engine.Step {
	from := f.Inventory.Spec.From
	return &engine.Wait{
		Name: "vacant/" + DefaultRange, About: "Verify that only pinned Services have an address in " + lists.Join(from, ", "), Again: true,
		For: func(ctx context.Context) error {
			now, err := f.lookAgain(ctx)
			if err != nil {
				return err
			}
			left := immovableIn(now, from)
			for _, e := range now.Pending() {
				left = append(left, fmt.Sprintf("services %s (%s)", e.Key(), e.Old))
			}
			if len(left) > 0 {
				return &RangeInUseError{Range: from, Holders: left}
			}
			return nil
		},
	}
}

// Restore is empty: the flag was changed before the first Service returned.
func (FlagPlan) Restore() []engine.Group { return nil }

// Withdraw is empty: no range was added.
func (FlagPlan) Withdraw() []engine.Group { return nil }

// HandOver is empty: the range is the cluster's own.
func (FlagPlan) HandOver() []engine.Group { return nil }

func (r *RangePlan) Guard(what string, owned []freeze.Owned) *freeze.AddressGuard {
	return &freeze.AddressGuard{Client: r.Client, Migration: r.Inventory.Spec.Name, Owned: owned, For: what}
}
