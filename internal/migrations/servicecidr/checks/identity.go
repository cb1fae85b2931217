package checks

import (
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func identityChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1019", Severity: findings.Warning, Run: checkIdentities,
			Claim: "clients find every Service by its name, and not by a ClusterIP that is written down",
			Why: "storage systems write the ClusterIPs of some of their Services down where no restart corrects them; such Services are pinned, " +
				"and their addresses stay in a range of their own",
			Fix: "nothing, if it is to stay so; to move one all the same: kubectl annotate service -n NAMESPACE NAME replumb.dev/strategy=hop",
		},
	}
}

func checkIdentities(in Input) []findings.Result {
	return failedFor(in.Inventory.Pins, services.Identity)
}
