package checks

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

func ingressChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1710", Severity: findings.Warning, Run: checkRoutes,
			Claim: "ingress controllers and gateways lead only to Services that keep their address",
			Why: "they watch Services, and see one that moves as type ExternalName for some milliseconds. Such Services hop by themselves, at most " +
				strconv.Itoa(
					bridge.Together,
				) + " at once and every seven seconds, right after a harmless change that has Traefik (2 s) and ingress-nginx (3.3 s) " +
				"gather what follows. Others may act on what is in between, and so do these where routes change all the time",
			Fix: "name what goes through the ingress in spec.proof.probes, and move such Services in a tier and a window of their own; or pin them: " +
				"kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=pin",
		},
	}
}

func checkRoutes(in Input) []findings.Result {
	pending := in.Inventory.Pending()
	if len(pending) == 0 {
		return findings.Skip(noPending)
	}
	out := in.unread(inventory.RouteResources()...)
	for _, e := range pending {
		if !e.Hops() {
			continue
		}
		var by []string
		for _, r := range in.Found().Routes {
			if r.Service != e.Key() {
				continue
			}
			text := r.By
			if controller := in.Found().IngressClasses[r.Class]; controller != "" {
				text = fmt.Sprintf("%s (%s)", text, controller)
			}
			by = append(by, text)
		}
		if len(by) > 0 {
			slices.Sort(by)
			out = append(out, failedService(e, "is led to by %s", services.FirstTen(slices.Compact(by))))
		}
	}
	return out
}
