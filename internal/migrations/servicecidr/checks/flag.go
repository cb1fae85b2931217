package checks

import (
	"net/netip"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
)

// flagChecks are about clusters without ServiceCIDRs (docs/design/versions.md).
func flagChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1731", Severity: findings.Warning, Run: checkFlag,
			Claim: "a second Service range can be added, so that API servers change last",
			Why: "up to Kubernetes 1.32 the one range is a flag: all API servers and controller managers get the new one before the first Service moves, and " +
				"the old one before the first returns. From then on new Services are given addresses of it. While API servers differ, creating Services may fail",
			Fix: "let deployments that create Services rest while gate api-servers is open, or upgrade to 1.33 or later first",
		},
		{
			Code: "RP1732", Severity: findings.Blocking, Run: checkFlagFits,
			Claim: "where the Service range is a flag, the migration takes the whole range to another one, by hops",
			Why: "before Kubernetes 1.33 there is one range only: a Service left behind could not be recreated; and only a Service reserves an address, " +
				"so that none can be written in etcd",
			Fix: "use mode Move with one target range, clusterServices: Move and no strategy Etcd, or upgrade to Kubernetes 1.33 or later first",
		},
		{
			Code: "RP1733", Severity: findings.Warning, Run: checkFlagPins,
			Claim: "every Service has an address in the range of the API servers",
			Why: "it works and can be changed, but API servers say ClusterIPOutOfRange of it every three minutes, and refuse its manifest with that clusterIP once it " +
				"was deleted",
			Fix: "take clusterIP out of its manifest, so that it can be made again; with Kubernetes 1.33 or later a range is kept for it",
		},
		{
			Code: "RP1734", Severity: findings.Blocking, Run: checkGuard,
			Claim: "where the range is a flag, addresses can be kept free while API servers change",
			Why: "new Services could be given an address that a bridge is using, or to which a Service is to return; a ValidatingAdmissionPolicy " +
				"(Kubernetes 1.30 or later) refuses them",
			Fix: "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -; and have the API servers serve " +
				"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicies",
		},
		{
			Code: "RP1735", Severity: findings.Warning, Run: checkFlagLate,
			Claim: "where the range is a flag, a rollback empties the target range",
			Why: "Services that were made since the API servers got the target range have addresses of it. They keep them, out of the range that the API servers have " +
				"again, and stay as RP1733 says",
			Fix: "after the rollback, make them again without clusterIP, when their clients allow",
		},
	}
}

func checkFlag(in Input) []findings.Result {
	if !in.Inventory.Bitmap || in.Snapshot.Version == nil {
		return nil
	}
	var all []netip.Prefix
	for i := range in.Inventory.Ranges {
		all = append(all, services.CIDRsOf(&in.Inventory.Ranges[i])...)
	}
	return []findings.Result{findings.Failed("", "the API server is %s, and gives out addresses of %s alone, which is its flag",
		in.Snapshot.Version.GitVersion, lists.Join(all, ", "))}
}

func checkFlagFits(in Input) (out []findings.Result) {
	if !in.Inventory.Bitmap {
		return findings.Skip("the API servers have ServiceCIDRs")
	}
	s, refuse := in.spec(), func(format string, args ...any) { out = append(out, findings.Failed("", format, args...)) }
	if s.Mode != v1alpha1.ModeMove {
		refuse("spec.serviceCIDR.mode is %s", s.Mode)
	}
	if len(s.To) > 1 {
		refuse("the target is %d ranges: %s", len(s.To), lists.Join(s.To, ", "))
	}
	if s.ClusterServices == v1alpha1.ClusterServicesStay {
		refuse("spec.serviceCIDR.clusterServices is Stay")
	}
	for i := range in.Inventory.Ranges {
		if all := services.CIDRsOf(&in.Inventory.Ranges[i]); len(all) > 1 {
			refuse("the API servers have ranges of both families, %s", lists.Join(all, ", "))
		}
	}
	if len(s.From) > 1 {
		refuse("the ranges to empty are %s, and the API servers have one", lists.Join(s.From, ", "))
	}
	if len(s.From) == 1 && len(s.To) == 1 && !hasRange(in.Inventory, s.From[0]) && !hasRange(in.Inventory, s.To[0]) {
		refuse("the range to empty is %s, and that of the API servers is neither this nor the target", s.From[0])
	}
	for _, e := range in.Inventory.All() {
		if e.Strategy == v1alpha1.StrategyOfEtcd {
			out = append(out, failedService(e, "is to move by strategy Etcd"))
		}
	}
	return out
}

func hasRange(s *services.Inventory, r netip.Prefix) bool {
	for i := range s.Ranges {
		if slices.Contains(services.CIDRsOf(&s.Ranges[i]), r) {
			return true
		}
	}
	return false
}

func checkFlagPins(in Input) (out []findings.Result) {
	if !in.Inventory.Bitmap {
		return findings.Skip("the API servers have ServiceCIDRs")
	}
	for _, e := range in.Inventory.Pins {
		if a := in.spec().Current(e.Service); cidr.Contains(in.spec().From, a) {
			out = append(out, failedService(e, "keeps %s: it %s", a, e.Reason))
		}
	}
	return out
}

func checkGuard(in Input) []findings.Result {
	if !in.Inventory.Bitmap {
		return findings.Skip("the API servers have ServiceCIDRs")
	}
	if in.Guard == nil {
		return nil
	}
	return []findings.Result{findings.Failed("", "%v", in.Guard)}
}

func checkFlagLate(in Input) (out []findings.Result) {
	if !in.Inventory.Bitmap || !in.Back {
		return findings.Skip("this is no rollback where the range is a flag")
	}
	for _, e := range slices.Concat(in.Inventory.Pins, in.Inventory.Stays) {
		if a, late := services.AddressIn(e.Service, in.spec().To); late {
			out = append(out, failedService(e, "was made at %s, and stays there", a))
		}
	}
	return out
}
