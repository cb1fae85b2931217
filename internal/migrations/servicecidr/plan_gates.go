package servicecidr

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
)

// recheck asks all gates again before the point of no return: nodes and API servers come and go.
func (p *Planner) recheck() []engine.Group {
	if p.Migration.Status.PointOfNoReturnPassed {
		return nil
	}
	var steps []engine.Step
	if k, want := p.kubeletsOf(engine.Forward); k != nil {
		steps = append(steps, ranges.RecheckStep("kubelets", "Verify that every kubelet names "+want+" as cluster DNS",
			ranges.KubeletGuide(p.Origin, want, p.Inventory.DNSKept()), k.Holds, nil))
	}
	plan := p.ranges()
	if e := p.Inventory.Kubernetes(); e != nil {
		title := fmt.Sprintf("Verify that the certificate of every API server names %s and %s", e.Old, e.New)
		servers := plan.Look()
		steps = append(steps, ranges.RecheckStep("certificates", title,
			ranges.CertificateGuide(p.Origin, e.Old, e.New), servers.Certified(e.Old, e.New), servers.Remark))
	}
	_, to, moves := ranges.DefaultRanges(p.Inventory)
	if p.Inventory.Bitmap { // which has one family
		to, moves = p.spec().To[:1], true
	}
	if moves {
		servers := plan.Look()
		steps = append(
			steps,
			ranges.RecheckStep("api-servers", fmt.Sprintf("Verify that every API server has %s as --service-cluster-ip-range", ranges.FlagText(to)),
				ranges.APIServerGuide(p.Origin, to), plan.OnRange(servers, to, ranges.Repointed, false), servers.Remark),
		)
	}
	return engine.AtOnce(parallel, "", steps...)
}

func (p *Planner) kubelets(to engine.Direction) []engine.Group {
	k, want := p.kubeletsOf(to)
	if k == nil {
		return nil
	}
	record := ranges.RecordKubelets(p.Tools.Client(), p.spec().Name, p.Tools.Now)
	title := "Wait until every kubelet names " + want + " as cluster DNS"
	gate := ranges.NewGate("kubelets", title, ranges.KubeletGuide(p.Origin, want, p.Inventory.DNSKept()), p.spec().GateWait, k.Holds)
	if spec := p.spec(); p.Kubeadm != nil && spec.ByKubeadm(v1alpha1.GateKubelets) {
		return engine.InOrder(append(ranges.NameDNS(p.Kubeadm, &gate.Wait, k, k.Left, k.Want), record)...)
	}
	return engine.InOrder(
		ranges.CallAction(gate, p.spec(), ranges.GateRequest{Cluster: p.Identity, Run: ranges.RunTo(to), Gate: v1alpha1.GateKubelets, Want: want}),
		record,
	)
}

func (p *Planner) kubeletsOf(to engine.Direction) (k *ranges.Kubelets, want string) {
	k = &ranges.Kubelets{Cluster: p.Tools.Cluster, Migration: p.spec().Name}
	var all []string
	for _, e := range p.Inventory.DNSMoves() {
		if to == engine.Backward && (!e.Touched() || e.CannotReturn()) {
			continue // it never moved, or does not return
		}
		leaves, goes := e.Ends(to)
		k.Left, k.Want, all = append(k.Left, leaves), append(k.Want, goes), append(all, goes.String())
	}
	if len(k.Left) == 0 {
		return nil, ""
	}
	k.Confirmation = strings.Join(all, ",")
	return k, k.Confirmation
}

func (p *Planner) ranges() *ranges.RangePlan {
	return &ranges.RangePlan{
		Client: p.Tools.Client(), Inventory: p.Inventory, Origin: p.Origin, Wait: p.spec().GateWait,
		Servers: ranges.APIServers{
			Cluster: p.Tools.Cluster, Inspector: p.Inspector, Addresses: p.spec().APIServers, Witnesses: p.Agents.Witnesses,
			Bitmap: p.Inventory.Bitmap, Family: ranges.MovingFamily(p.Inventory),
		},
		Identity: p.Identity, Kubeadm: p.Kubeadm,
	}
}

// lookAtNodes has replumb see, before anything moves, whether it can pass the gates it is to pass.
func (p *Planner) lookAtNodes() []engine.Group {
	if p.Kubeadm == nil {
		return nil
	}
	spec, look := p.spec(), kubeadmgate.Expected{}
	if k, _ := p.kubeletsOf(engine.Forward); k != nil && spec.ByKubeadm(v1alpha1.GateKubelets) {
		look.DNSFrom, look.DNSTo = lists.Strings(k.Left), lists.Strings(k.Want)
	}
	look.Certificate = p.Inventory.Kubernetes() != nil && spec.ByKubeadm(v1alpha1.GateCertificates)
	if was, becomes := p.ranges().Flags(); len(becomes) > 0 && spec.ByKubeadm(v1alpha1.GateAPIServers) {
		look.Flags = ranges.FlagChanges(becomes, was)
	}
	return p.Kubeadm.Examine(look)
}

// leaveNodes removes what replumb has left on nodes, and on the way back what it has named.
func (p *Planner) leaveNodes(to engine.Direction) []engine.Group {
	if p.Kubeadm == nil {
		return nil
	}
	e, spec := p.Inventory.Kubernetes(), p.spec()
	back := to == engine.Backward && e != nil && spec.ByKubeadm(v1alpha1.GateCertificates)
	groups := p.Kubeadm.Forget(back)
	if back {
		groups = append(engine.InOrder(p.Kubeadm.RemoveCertSANs(spec.To, e.Old)), groups...)
	}
	return groups
}

func (p *Planner) changes() ranges.RangeSteps {
	if p.Inventory.Bitmap {
		return ranges.FlagPlan{RangePlan: p.ranges()}
	}
	return p.ranges()
}

func rangesBy(groups func(ranges.RangeSteps) []engine.Group) func(*Planner) []engine.Group {
	return func(p *Planner) []engine.Group { return groups(p.changes()) }
}
