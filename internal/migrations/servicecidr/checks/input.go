package checks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// Input is what the checks look at.
type Input struct {
	Snapshot  *cluster.Snapshot
	Inventory *services.Inventory
	Live      cluster.Live
	// Workloads are what runs in the cluster; nil, if it was not looked at. Restarts are those of
	// them that apply restarts.
	Workloads *rollout.State
	Restarts  []rollout.Workload
	// Trials are what was tried by dry runs.
	Trials Trials
	// DualWrite is whether API servers write addresses twice; empty, if no default range goes.
	// Vouched says that the user says they do not.
	DualWrite apiserver.DualWrite
	Vouched   bool
	// Storage is what was found where API servers keep Services.
	Storage Storage
	// Freeze is why Services cannot be frozen; nil if they can.
	Freeze error
	// Guard is why addresses cannot be kept from others; nil if they can, or need not.
	Guard error
	// Back says that the migration goes back.
	Back bool
	// Image is what agents run; empty if there are to be none.
	Image string
	// Overlap says that bridges are kept in step between commands.
	Overlap bool
	// AbsentSecrets are the pull secrets of agents that are not there.
	AbsentSecrets []findings.Result
}

func (in Input) spec() services.Spec { return in.Inventory.Spec }

// Found is what was found by looking through the cluster; nothing if it was not looked through,
// which unread says.
func (in Input) Found() *cluster.Inspection {
	if in.Live.Inspection == nil {
		return &cluster.Inspection{}
	}
	return in.Live.Inspection
}

// unread says which of the resources that a check is about could not be looked through.
func (in Input) unread(resources ...string) []findings.Result {
	const most = 6 // of resources that belong to Kubernetes; there are many more of others
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "the cluster was not looked through")}
	}
	var missing []string
	for _, r := range resources {
		if _, yes := in.Live.Inspection.Unread[r]; yes {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if len(missing) > most {
		missing = firstThree(missing)
	}
	return []findings.Result{findings.NotKnown("", "the user may not read %s", strings.Join(missing, ", "))}
}

// firstThree shortens a list to what a person reads.
func firstThree(all []string) []string {
	const most = 3
	if len(all) <= most+1 {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("%d more", len(all)-most))
}

// firstFive names the first few of a set.
func firstFive(set map[string]bool) string {
	const few = 5
	all := slices.Sorted(maps.Keys(set))
	if len(all) <= few {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:few], ", "), len(all)-few)
}
