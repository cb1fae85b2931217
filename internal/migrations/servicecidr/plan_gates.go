package servicecidr

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/internal/engine"
)

// recheck asks all gates again, right before the point of no return: nodes and API servers come and go.
func (p *Planner) recheck() []engine.Group {
	if p.Migration.Status.PointOfNoReturnPassed {
		return nil
	}
	var steps []engine.Step
	if k, want := p.kubeletsOf(engine.Forward); k != nil {
		steps = append(steps, recheckStep("kubelets", "Verify that every kubelet names "+want+" as cluster DNS",
			kubeletGuide(p.Origin, want, p.Inventory.DNSKept()), k.Holds, nil))
	}
	plan := p.ranges()
	if e := p.Inventory.Kubernetes(); e != nil {
		title := fmt.Sprintf("Verify that the certificate of every API server names %s and %s", e.Old, e.New)
		servers := plan.look()
		steps = append(steps, recheckStep("certificates", title,
			certificateGuide(p.Origin, e.Old, e.New), servers.Certified(e.Old, e.New), servers.Remark))
	}
	_, to, moves := Defaults(p.Inventory)
	if p.Inventory.Bitmap { // which has one family
		to, moves = p.spec().To[:1], true
	}
	if moves {
		servers := plan.look()
		steps = append(
			steps,
			recheckStep("api-servers", fmt.Sprintf("Verify that every API server has %s as --service-cluster-ip-range", flagOf(to)),
				apiServerGuide(p.Origin, to), plan.onRange(servers, to, repointed, false), servers.Remark),
		)
	}
	return engine.AtOnce(parallel, "", steps...)
}

// kubelets waits until no kubelet names the cluster DNS address that is left behind.
func (p *Planner) kubelets(to engine.Direction) []engine.Group {
	k, want := p.kubeletsOf(to)
	if k == nil {
		return nil
	}
	title := "Wait until every kubelet names " + want + " as cluster DNS"
	gate := NewGate("kubelets", title, kubeletGuide(p.Origin, want, p.Inventory.DNSKept()), p.spec().GateWait, k.Holds)
	return engine.InOrder(
		CallAction(gate, p.spec(), GateRequest{Cluster: p.Identity, Run: runTo(to), Gate: GateKubelets, Want: want}),
		recordKubelets(p.Tools.Client(), p.spec().Name, p.Tools.Now),
	)
}

// kubeletsOf are those that have to name want as cluster DNS in a direction; nil if cluster DNS does not move.
func (p *Planner) kubeletsOf(to engine.Direction) (k *Kubelets, want string) {
	k = &Kubelets{Cluster: p.Tools.Cluster, Migration: p.spec().Name}
	var all []string
	for _, e := range p.Inventory.DNSMoves() {
		if to == engine.Backward && (!e.Touched() || e.CannotReturn()) {
			continue // it never moved, or does not return
		}
		leaves, goes := e.Ends(to)
		k.Left, all = append(k.Left, leaves), append(all, goes.String())
	}
	if len(k.Left) == 0 {
		return nil, ""
	}
	k.Confirmation = strings.Join(all, ",")
	return k, k.Confirmation
}

func (p *Planner) ranges() *Plan {
	return &Plan{
		Client: p.Tools.Client(), Inventory: p.Inventory, Origin: p.Origin, Wait: p.spec().GateWait,
		Servers: APIServers{
			Cluster: p.Tools.Cluster, Inspector: p.Inspector, Addresses: p.spec().APIServers, Witnesses: p.Agents.Witnesses,
			Bitmap: p.Inventory.Bitmap, Family: FamilyOf(p.Inventory),
		},
		Identity: p.Identity,
	}
}

func (p *Planner) changes() Changes {
	if p.Inventory.Bitmap {
		return FlagPlan{Plan: p.ranges()}
	}
	return p.ranges()
}

// rangesBy has the steps of a phase be made by what the cluster has.
func rangesBy(groups func(Changes) []engine.Group) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return groups(p.changes()) }
}
