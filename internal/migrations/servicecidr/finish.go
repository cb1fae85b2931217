package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/verify/leftaddress"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

func soak(p *Planner) []engine.Group {
	past := p.Migration.Status.PointOfNoReturnPassed           // and agents look for clients no longer
	if p.Agents == nil || p.LeaveClients || p.Cilium || past { // RP1207 says that nobody sees clients behind Cilium
		return nil
	}
	length := time.Minute
	if s := p.spec().Common.Proof.Soak; s != nil {
		length = s.Duration
	}
	return engine.InOrder(&lossguard.Soak{
		Client:    p.Tools.Client(),
		Migration: p.spec().Name,
		Watch:     p.Agents.Watch,
		Addresses: addressesLeft(p, engine.Forward),
		Left: func(ctx context.Context) (leftaddress.Addresses, error) {
			return lossguard.Left(ctx, p.Tools.Client(), p.spec().Name, leftaddress.Ranges{From: p.spec().From, All: p.Agents.Ranges})
		},
		Must:   servicesAway(p),
		Length: length,
		Limit:  p.Agents.Wait,
		Within: length + p.spec().GateWait,
		Now:    p.Tools.Now,
	})
}

// servicesAway has those that moved by the addresses they have left.
func servicesAway(p *Planner) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, e := range p.Inventory.All() {
		if e.Away() {
			all[e.Old] = e.Key().String()
		}
	}
	return all
}

func verify(p *Planner) []engine.Group {
	listed := &release.ServiceList{}
	return eachBegun(p, func(e *services.Entry) engine.Step {
		return release.ArrivalStep(p.Tools.Client(), listed, e, p.spec().Domain)
	})
}

func eachBegun(p *Planner, step func(*services.Entry) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, e := range begun(p) {
		steps = append(steps, step(e))
	}
	return engine.AtOnce(parallel, "", steps...)
}

func begun(p *Planner) (all []*services.Entry) {
	for _, e := range p.Inventory.All() {
		if e.Begun() && !e.IsStranded() {
			all = append(all, e)
		}
	}
	return all
}

func releaseOf(p *Planner, e *services.Entry, at netip.Addr, why string) release.Release {
	return release.Release{
		Client:     p.Tools.Client(),
		Migration:  p.spec().Name,
		Entry:      e,
		At:         at,
		Domain:     p.spec().Domain,
		Strategies: p.spec().Strategies,
		Why:        why,
	}
}

func stopProbing(p *Planner, to engine.Direction) []engine.Group {
	if p.Agents == nil {
		return nil
	}
	groups := engine.InOrder(p.Agents.Quiet(addressesLeft(p, to)))
	if to == engine.Backward {
		return p.Agents.BestEffort(groups)
	}
	return groups
}

// addressesLeft includes the bridges' own addresses, which clients may have looked up in a hop.
func addressesLeft(p *Planner, to engine.Direction) map[string]bool {
	all := map[string]bool{}
	for _, e := range p.Inventory.All() {
		left, _ := e.Ends(to)
		all[left.String()] = true
		if e.Bridge != nil {
			for _, own := range services.AddressesOf(e.Bridge) {
				all[own.String()] = true
			}
		}
	}
	return all
}

func proveReleased(p *Planner) []engine.Group {
	if len(p.Inventory.Moves) == 0 {
		return nil
	}
	return engine.InOrder(p.barriers(engine.Forward).Step("released addresses"))
}

func drain(p *Planner) []engine.Group {
	return engine.InOrder(release.DrainStep(p.Tools.Client(), p.spec().Name, p.spec().Drain, p.Tools.Now))
}

// release takes the addresses of a direction away. Finish stops at a loss, batch by batch; a
// rollback, at the Services' own addresses, stops for nothing.
func (p *Planner) release(to engine.Direction) []engine.Group {
	groups := stopProbing(p, to)
	all := begun(p)
	if to == engine.Backward {
		return slices.Concat(groups, p.releaseAll("rollback", all, to), strandedStep(p))
	}
	batches := slices.Collect(slices.Chunk(all, p.spec().Batch))
	barriers := p.barriers(to)
	for i, some := range batches {
		name := fmt.Sprintf("release %d of %d", i+1, len(batches))
		groups = append(groups, p.releaseAll(name, some, to)...)
		if i+1 == len(batches) { // phase prove is its barrier
			break
		}
		after := []engine.Step{barriers.Step(name)}
		if p.spec().Settle > 0 {
			after = append(after, &migration.PauseStep{
				Name: "settle/" + name, Length: p.spec().Settle, Now: p.Tools.Now,
				About: fmt.Sprintf("Let %s settle for %s", name, p.spec().Settle),
			})
		}
		groups = append(groups, engine.AtOnce(1, name, after...)...)
	}
	return append(groups, strandedStep(p)...)
}

// releaseAll releases Services, and then the addresses that etcd has for them, unless that is
// reached through a pod: none is made for what the API can do.
func (p *Planner) releaseAll(name string, all []*services.Entry, to engine.Direction) []engine.Group {
	var steps []engine.Step
	var later []release.Release
	for _, e := range all {
		_, at := e.Ends(to)
		if e.CannotReturn() {
			at = e.New
		}
		r := releaseOf(p, e, at, "")
		if r.Later = p.Store != nil && p.Relayed == nil && r.InEtcd(); r.Later {
			later = append(later, r)
		}
		steps = append(steps, r.Step())
	}
	groups := engine.AtOnce(parallel, name, steps...)
	if len(later) > 0 {
		groups = append(groups, engine.AtOnce(1, name, release.Free(name, p.Store, later))...)
	}
	return groups
}
