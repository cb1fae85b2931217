package checks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/migrations/servicecidr/trials"
)

// Input is what the checks look at.
type Input struct {
	Snapshot  *inventory.Snapshot
	Inventory *services.Inventory
	Live      inventory.Live
	// Workloads is nil if it was not looked at; Restarts are those that apply restarts.
	Workloads *rollout.State
	Restarts  []rollout.Workload
	// Trials are what was tried by dry runs.
	Trials trials.Trials
	// Unanswered are errors of the API server in the place of answers.
	Unanswered []error
	// DualWrite is empty if no default range goes. Vouched is the user's word that there is none.
	DualWrite apiserver.DualWrite
	Vouched   bool
	Storage   Storage
	// Freeze is why Services cannot be frozen; nil if they can.
	Freeze error
	// KeepType is why the type of Services cannot be kept that keep their address as a load
	// balancer's; nil if it can, or need not.
	KeepType error
	// Guard is why addresses cannot be kept from others; nil if they can, or need not.
	Guard error
	Back  bool
	// Image is what agents run; empty if there are to be none.
	Image         string
	Overlap       bool
	AbsentSecrets []findings.Result
	// Kubeadm is nil unless replumb is to pass gates itself; GateImage is what does it on nodes.
	Kubeadm   *kubeadmgate.KubeadmState
	GateImage string
}

// The commonest reasons to look no further.
const (
	noMoves   = "no Service moves"
	noPending = "no Service is yet to move"
	noProxies = "no configuration of kube-proxy was seen"
)

func (in Input) spec() services.Spec { return in.Inventory.Spec }

// Found is empty if the cluster was not looked through, which unread says.
func (in Input) Found() *inventory.Scan {
	if in.Live.Inspection == nil {
		return &inventory.Scan{}
	}
	return in.Live.Inspection
}

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

func firstThree(all []string) []string {
	const most = 3
	if len(all) <= most+1 {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("%d more", len(all)-most))
}

func firstFive(set map[string]bool) string { return lists.FirstN(slices.Sorted(maps.Keys(set)), 5) }

// failedService begins with the name of the Service.
func failedService(e *services.Entry, format string, args ...any) findings.Result {
	return findings.Failed("Service "+e.Key().String(), "service %s "+format, append([]any{e.Key()}, args...)...)
}

func failedFor(all []*services.Entry, reason services.ReasonKind) (out []findings.Result) {
	for _, e := range all {
		if e.Reason.Kind == reason {
			out = append(out, failedService(e, "%s", e.Reason))
		}
	}
	return out
}
