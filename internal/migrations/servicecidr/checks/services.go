package checks

import (
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

func serviceChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1012", Severity: findings.Blocking, Run: checkRefused,
			Claim: "every Service of the old range can be moved or is pinned",
			Why:   "a Service that stays keeps the old range in use, which then cannot be retired; replumb does not move what it does not understand",
			Fix:   "change the Service, or let it keep its address: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
		{
			Code: "RP1013", Severity: findings.Blocking, Run: checkFreeze,
			Claim: "Services in flight can be frozen for all other users",
			Why:   "a change of ports or selector of a Service between its bridge and its hop can cost requests",
			Fix: "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -; or go on without a freeze: " +
				"spec.freeze: IfPossible",
		},
		{
			Code: "RP1014", Severity: findings.Warning, Run: checkUnfrozen,
			Claim: "Services are frozen while they are in flight",
			Why:   "without a freeze replumb follows changes by others where it can, and else stops and says so",
			Fix:   "keep deployments from changing Services during the move",
		},
		{
			Code: "RP1016", Severity: findings.Blocking, Run: checkFirstAddress,
			Claim: "the first address of the target is free for the Service default/kubernetes",
			Why:   "API servers started with the new range expect themselves there, and their certificates name that address",
			Fix:   "move the Service that has the address out of the way, choose another target, or set spec.serviceCIDR.clusterServices: Stay",
		},
		{
			Code: "RP1026", Severity: findings.Blocking, Run: checkDNSAddress,
			Claim: "the tenth address of the target is free for cluster DNS",
			Why: "installers compute it from the Service range: kubeadm upgrade cannot give kube-dns another address than that, and nodes that join name it " +
				"to their pods, whatever answers there",
			Fix: "move the Service that has the address out of the way, choose another target, or set spec.serviceCIDR.clusterServices: Stay",
		},
		{
			Code: "RP1025", Severity: findings.Warning, Run: checkEnding,
			Claim: "every Service of the old range that is being removed ends",
			Why:   "the range cannot be retired before they are gone: apply moves all others, and waits for these at its end",
			Fix:   "see to it that what has set the finalizer takes it away, or take it away yourself, if that is gone: kubectl edit service -n NAMESPACE NAME",
		},
		{
			Code: "RP1017", Severity: findings.Warning, Run: checkTiers,
			Claim: "every Service has a known criticality",
			Why:   "a Service whose tier is not known moves with the default tier, which may be too early for it",
			Fix:   "correct the annotation replumb.dev/tier, add the Service to a tier, or teach it to the lookup",
		},
		{
			Code: "RP1022", Severity: findings.Warning, Run: checkSettled,
			Claim: "every Service that has moved can return",
			Why: "it was changed after it had moved; its old address answers until finish or rollback, and rollback leaves it where it is, with the " +
				"range that it is in",
			Fix: "nothing, if it is to stay there; to have it return, take the change back before rollback",
		},
		{
			Code: "RP1024", Severity: findings.Isolating, Run: checkStranded,
			Claim: "every Service that has left its address has another one",
			Why: "between the two patches of its hop a Service is of type ExternalName, and its bridge answers at its addresses; a run ended there, or " +
				"the second patch was refused. Everything else goes on, and the bridge stays",
			Fix: "run the command again, which completes it first. If that is refused, except the Service from what refuses it, or write its " +
				"address as a user who may, with the command that apply and rollback end with",
		},
		{
			Code: "RP1018", Severity: findings.Warning, Run: checkNodePorts,
			Claim: "Services that move are without node ports, which bridges cannot keep",
			Why: "a hop is timed to fall between two syncs of the kube-proxies, which other changes of Services may " +
				"disturb. As measured, a node port refused connections for 1.1 s at one node in 2 of 60 moves beside " +
				"one change of a Service a second, and in none of 60 on a quiet cluster",
			Fix: "move such Services in a tier and a window of their own, while little else changes; or in etcd, where ports go on answering: set spec.serviceCIDR.etcd, " +
				"to {source: Kubeadm} where kubeadm made the control planes, and strategies: {nodePort: Etcd}; or pin them: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
	}
}

func checkRefused(in Input) []findings.Result {
	return failedFor(in.Inventory.Stays, services.Refused)
}

func checkSettled(in Input) []findings.Result {
	var out []findings.Result
	for _, e := range in.Inventory.Moves {
		if e.CannotReturn() {
			out = append(out, failedService(e, "%s: it cannot leave %s again", e.Reason, e.New))
		}
	}
	return out
}

func checkStranded(in Input) (out []findings.Result) {
	for _, e := range in.Inventory.All() {
		switch {
		case e.IsStranded():
			out = append(out, failedService(e, "%s", e.Reason))
		case e.Position == services.InTransit:
			out = append(out, failedService(e, "has left its address, and a run has ended before it had another one"))
		}
	}
	return out
}

func checkFreeze(in Input) []findings.Result {
	if freeze := in.spec().Common.Freeze; freeze != v1alpha1.FreezeEnforce {
		return findings.Skip("spec.freeze is %s", freeze)
	}
	if in.Freeze == nil {
		return nil
	}
	return []findings.Result{findings.Failed("", "%v", in.Freeze)}
}

func checkUnfrozen(in Input) []findings.Result {
	switch in.spec().Common.Freeze {
	case v1alpha1.FreezeDisabled:
		return []findings.Result{findings.Failed("", "spec.freeze is Disabled")}
	case v1alpha1.FreezeEnforce:
		if in.Freeze != nil {
			return findings.Skip("nothing moves without the freeze (RP1013)")
		}
	case v1alpha1.FreezeIfPossible:
		if in.Freeze != nil {
			return []findings.Result{findings.Failed("", "%v", in.Freeze)}
		}
	}
	return nil
}

func checkFirstAddress(in Input) []findings.Result {
	e := in.Inventory.Kubernetes()
	if e == nil || len(in.spec().To) == 0 {
		return findings.Skip("the Service kubernetes does not move")
	}
	if first, _ := cidr.Bounds(in.spec().To[0]); e.New != first {
		return []findings.Result{findings.Failed("", "the first address of the target, %s, is taken%s", first, holderOf(in, first))}
	}
	return nil
}

// holderOf says who has an address, as far as it is seen.
func holderOf(in Input, a netip.Addr) string {
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		if slices.Contains(services.AddressesOf(svc), a) {
			return " by service " + svc.Namespace + "/" + svc.Name
		}
	}
	for i := range in.Snapshot.IPAddresses {
		if ip := &in.Snapshot.IPAddresses[i]; ip.Name == a.String() {
			return " by " + bridge.ParentOf(ip)
		}
	}
	return ""
}

// dnsOffset is that of cluster DNS in a Service range, as kubeadm computes it (GetDNSIP in
// k8s.io/kubernetes cmd/kubeadm/app/constants/constants.go), and others alike.
const dnsOffset = 10

// checkDNSAddress is about cluster DNS that has the address that installers compute.
func checkDNSAddress(in Input) (out []findings.Result) {
	if len(in.Inventory.DNSMoves()) == 0 {
		return findings.Skip("cluster DNS does not move")
	}
	for _, e := range in.Inventory.DNSMoves() {
		for _, from := range in.spec().From {
			at, is := cidr.At(from, big.NewInt(dnsOffset))
			if !is || at != e.Old || e.Away() || len(in.spec().To) == 0 {
				continue
			}
			want, fits := cidr.At(in.spec().To[0], big.NewInt(dnsOffset))
			if fits && e.New != want {
				out = append(out, failedService(e, "cannot have the tenth address of the target, %s, which is taken%s", want, holderOf(in, want)))
			}
		}
	}
	return out
}

func inOldRange(in Input, e *services.Entry) bool {
	_, is := services.AddressIn(e.Service, in.spec().From)
	return is
}

// checkEnding names what keeps Services from ending that have an address in a range that goes.
func checkEnding(in Input) (out []findings.Result) {
	for _, e := range in.Inventory.Stays {
		if e.Reason.Kind != services.Ending || !inOldRange(in, e) {
			continue
		}
		text := "keeps " + e.Old.String() + " in use until it is gone: it " + e.Reason.String()
		if len(e.Service.Finalizers) > 0 {
			text += ", and has the finalizer " + strings.Join(e.Service.Finalizers, ", ")
		}
		out = append(out, failedService(e, "%s", text))
	}
	return out
}

func checkTiers(in Input) []findings.Result {
	var out []findings.Result
	for _, p := range in.Inventory.TierProblems {
		out = append(out, findings.Failed("Service "+p.Service.String(), "%s", p))
	}
	return out
}

func checkNodePorts(in Input) []findings.Result {
	var out []findings.Result
	for _, e := range in.Inventory.Pending() {
		if e.HasNodePorts() && e.Hops() {
			out = append(out, failedService(e, "has node ports"))
		}
	}
	return out
}
