package nodes

import (
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Input is what the checks look at.
type Input struct {
	Survey *Survey
	Access []cluster.Answer
	// EtcdProblem is why its members could not be asked, RecordProblems why names cannot be moved.
	EtcdProblem, EventsProblem error
	RecordProblems             map[string]error
	// EndProblems are why names of the API cannot go yet to what they are to have at last.
	EndProblems map[string]error
	// AbsentSecrets are the pull secrets of canaries and agents that are not there.
	AbsentSecrets []findings.Result
	// Image is what agents run; none, if there are to be none.
	Image string
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Nodes", nodeChecks()...),
		findings.Group("Workloads", slices.Concat(workloadChecks(), leavingChecks())...),
		findings.Group("Ingress", ingressChecks()...),
		findings.Group("Policies", policyChecks()...),
		findings.Group("Control plane", controlPlaneChecks()...),
		findings.Group("Agents", agentChecks()...),
	)
}
