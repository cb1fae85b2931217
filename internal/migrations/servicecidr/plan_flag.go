package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// flagPlan makes the groups of steps that change the Service range where it is a flag of the API servers and nothing else. They give out
// addresses of that range alone: so they get the new one before the first Service moves, and the old one before the first returns. Services
// keep the addresses that they have, in the range or not. See docs/design/versions.md.
type flagPlan struct {
	*rangePlan
}

var (
	_ rangeChanges = (*rangePlan)(nil)
	_ rangeChanges = flagPlan{}
)

// extend has the API servers give out addresses of the target.
func (f flagPlan) extend() []engine.Group { return f.change(f.survey.Spec.To[0], repointed, false) }

// reopen has them give out those of the old range again. Where they never had another, what cannot be seen is passed over.
func (f flagPlan) reopen() []engine.Group {
	from := f.survey.Spec.From
	if len(from) == 0 {
		return nil
	}
	begun := slices.ContainsFunc(f.survey.everything(), (*Entry).begun)
	return f.change(from[0], restored, !begun && f.survey.gives(from))
}

// change has API servers get another range. From when the first one has it until all addresses in it that replumb needs are reserved again, a
// policy keeps these from others.
func (f flagPlan) change(want netip.Prefix, confirmation string, lenient bool) []engine.Group {
	var steps []engine.Step
	guard := f.guard(want.String(), f.survey.unreserved(want))
	if len(guard.Owned) > 0 {
		steps = append(steps, guard)
	}
	steps = append(steps, f.apiServers([]netip.Prefix{want}, confirmation, lenient))
	if len(guard.Owned) > 0 || !f.survey.gives([]netip.Prefix{want}) {
		steps = append(steps, givesOut{client: f.client, migration: f.survey.Spec.Name, want: want}.step())
	}
	return engine.InOrder(append(steps, settle{client: f.client, survey: f.survey, in: want}.step(), guard.Undo())...)
}

// repoint looks once more. There is nothing to retire: no Service is given an address of the old range any more.
func (f flagPlan) repoint() []engine.Group {
	to, servers := f.survey.Spec.To[:1], f.look()
	return engine.InOrder(
		f.vacant(),
		&engine.Wait{
			Name: "verify/api-servers", About: fmt.Sprintf("Verify that every API server has %s as --service-cluster-ip-range", flagOf(to)),
			For: f.onRange(servers, to, repointed, false), Limit: f.wait, Remark: servers.remark,
		},
	)
}

// vacant fails if a Service that moves, or one that should, still has an address of the old range.
func (f flagPlan) vacant() engine.Step {
	from := f.survey.Spec.From
	return &engine.Wait{
		Name: "vacant/" + defaultRange, About: "Verify that only pinned Services have an address in " + joinRanges(from), Again: true,
		For: func(ctx context.Context) error {
			now, err := f.lookAgain(ctx)
			if err != nil {
				return err
			}
			left := now.immovable(from)
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

// restore has nothing to do: the flag was changed before the first Service returned.
func (flagPlan) restore() []engine.Group { return nil }

// withdraw has nothing to do: no range was added.
func (flagPlan) withdraw() []engine.Group { return nil }

// handOver has nothing to do: the range is the cluster's own.
func (flagPlan) handOver() []engine.Group { return nil }

func (r *rangePlan) guard(what string, owned []freeze.Owned) *freeze.Guard {
	return &freeze.Guard{Client: r.client, Migration: r.survey.Spec.Name, Owned: owned, For: what}
}

// gives reports whether the API server that was asked gives out addresses of all of some ranges.
func (s *Survey) gives(ranges []netip.Prefix) bool {
	var all []netip.Prefix
	for i := range s.Ranges {
		all = append(all, cidrsOf(&s.Ranges[i])...)
	}
	return !slices.ContainsFunc(ranges, func(want netip.Prefix) bool {
		return !slices.ContainsFunc(all, func(r netip.Prefix) bool { return r.Contains(want.Addr()) && r.Bits() <= want.Bits() })
	})
}

// unreserved are the addresses in a range that Services are to have, or that bridges answer at, and that an API server with this range could
// give to others: no Service has them, and nothing but a note reserves them.
func (s *Survey) unreserved(in netip.Prefix) []freeze.Owned {
	var all []freeze.Owned
	for _, e := range s.everything() {
		if !e.begun() {
			continue
		}
		for _, a := range e.addresses() {
			r, reserved := e.reserved[a]
			if in.Contains(a) && !isAt(e.Service, a) && (!reserved || r.noted) {
				all = append(all, freeze.Owned{Address: a, Owner: e.Key().String()})
			}
		}
	}
	for i := range s.Strays {
		all = append(all, owned(in, s.Strays[i].Name)...)
	}
	for _, b := range s.Orphans {
		for _, a := range answersAt(b) {
			all = append(all, owned(in, a.String())...)
		}
	}
	return all
}

// owned is an address that no one may have, if it is in a range.
func owned(in netip.Prefix, text string) []freeze.Owned {
	a, err := netip.ParseAddr(text)
	if err != nil || !in.Contains(a) {
		return nil
	}
	return []freeze.Owned{{Address: a}}
}

// returnPool has the free addresses of the old range, of which replumb takes those that it needs for itself on the way back.
func (s *Survey) returnPool() *cidr.Pool {
	if s.back == nil {
		s.back = cidr.NewPool(s.Spec.From, s.Used)
		for _, e := range s.everything() {
			if e.Old.IsValid() { // where it returns to
				s.back.Use(e.Old)
			}
		}
	}
	return s.back
}

// isNoted reports whether a reservation is of an address that no API server gave out when it was reserved.
func isNoted(ip *networkingv1.IPAddress, in netip.Prefix) bool {
	a, err := netip.ParseAddr(ip.Name)
	_, held := bridge.HeldFor(ip)
	return err == nil && held && ip.Annotations[annotationNoted] != "" && in.Contains(a)
}
