package nodes

import (
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Input is what the checks look at.
type Input struct {
	Survey *Survey
	Access []cluster.AccessAnswer
	// EtcdProblem is why its members could not be asked, RecordProblems why names cannot be moved.
	EtcdProblem    error
	RecordProblems map[string]error
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Nodes", nodeChecks()...),
		findings.Group("Workloads", workloadChecks()...),
		findings.Group("Ingress", ingressChecks()...),
		findings.Group("Control plane", controlPlaneChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way has to wait for somebody to grant it",
			Fix:   "grant the rights in deploy/rbac-nodes.yaml",
		},
		{
			Code:     "RP3002",
			Severity: findings.Warning,
			Run:      checkScalers,
			Claim:    "nothing makes and ends nodes by itself",
			Why: "an autoscaler replaces old nodes that are empty by new ones of the same kind, and takes new nodes away as long as they have " +
				"nothing to do",
			Fix: "scale it to zero for the time of the migration, or have it know only the new network: take the old node groups out of " +
				"cluster-autoscaler, or give Karpenter's NodePools of the old network limits of zero",
		},
	}
}

func nodeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3101", Severity: findings.Blocking, Run: checkOld,
			Claim: "there are old nodes",
			Why:   "a migration that leaves nothing has chosen the wrong nodes",
			Fix:   "see what spec.nodes.old chooses: kubectl get nodes --show-labels -o wide. Nodes of the control plane are none of it",
		},
		{
			Code: "RP3102", Severity: findings.Blocking, Run: checkBoth,
			Claim: "no node is old and new",
			Why:   "it would be emptied into itself",
			Fix:   "choose old and new nodes by a label that tells them apart, or by the ranges of their networks",
		},
		{
			Code: "RP3103", Severity: findings.Blocking, Run: checkAstray,
			Claim: "every node has an address of the network it was chosen for",
			Why:   "a new node in the old network has to move again, and an old node that is somewhere else was not meant",
			Fix:   "delete a new node that joined from the wrong network, or mend spec.nodes",
		},
		{
			Code: "RP3104", Severity: findings.Warning, Run: checkOldReady,
			Claim: "every old node is ready",
			Why:   "pods of a node whose kubelet does not answer are not ended in good order, and those with volumes not at all",
			Fix:   "mend the node; or end its machine, give it the taint node.kubernetes.io/out-of-service and delete it",
		},
		{
			Code: "RP3105", Severity: findings.Warning, Run: checkCordoned,
			Claim: "nobody else keeps pods off the nodes",
			Why:   "a new node that is cordoned takes no pods; an old one that is may be in somebody else's hands",
			Fix:   "kubectl uncordon it, or find out who cordoned it",
		},
		{
			Code:     "RP3106",
			Severity: findings.Blocking,
			Run:      checkRoom,
			Claim:    "everything that leaves has a place on the new nodes that are there",
			Why:      "a pod that is evicted and finds no node is gone until there is one",
			Fix: "add nodes, or nodes with the labels and without the taints that the pods ask for; or set spec.nodes.join.room: Partial, which " +
				"empties old nodes as far as there is room",
		},
	}
}

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3201", Severity: findings.Blocking, Run: checkBudgets,
			Claim: "no PodDisruptionBudget over pods that have to leave forbids every disruption",
			Why:   "the migration would wait for it for ever",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
		{
			Code:     "RP3202",
			Severity: findings.Blocking,
			Run:      checkVolumes,
			Claim:    "no volume keeps its pod on old nodes",
			Why:      "a pod starts only where its volume can be: one that is bound to an old node, or to a zone that no new node is in, stays without",
			Fix: "copy the data to a volume of the new network and have the pod use that; or for what can be lost: delete claim and pod. A " +
				"pod whose data is dealt with may be named in spec.nodes.drain.force",
		},
		{
			Code:     "RP3203",
			Severity: findings.Warning,
			Run:      checkSingles,
			Claim:    "no workload stands still while it leaves",
			Why:      "a workload with a single pod that ends before the next one is ready answers nobody in between",
			Fix:      "give it a second pod for the time of the migration; a Deployment with a single pod and maxSurge above 0 starts the new one first",
		},
		{
			Code: "RP3204", Severity: findings.Warning, Run: checkBare,
			Claim: "every pod that leaves is replaced",
			Why:   "a pod that nothing owns is not started elsewhere; its node is not ended before it has",
			Fix:   "move it yourself, or set spec.nodes.drain.barePods: Evict, which ends such pods for good",
		},
		{
			Code: "RP3205", Severity: findings.Warning, Run: checkLocalData,
			Claim: "no pod that leaves keeps data on its node",
			Why:   "what lies in an emptyDir or hostPath volume stays behind, and ends with the machine",
			Fix:   "save what matters, or leave it to the workload if it fills the volume again by itself, as caches do",
		},
		{
			Code: "RP3206", Severity: findings.Warning, Run: checkUnready,
			Claim: "every workload that leaves is complete now",
			Why:   "none of its pods is evicted before all are ready, so its nodes are not emptied",
			Fix:   "mend it first, or scale it to zero",
		},
		{
			Code:     "RP3207",
			Severity: findings.Warning,
			Run:      checkSpread,
			Claim:    "no pod has to be spread over nodes that take none",
			Why: "nodes with taints count as places to fill, so with whenUnsatisfiable: DoNotSchedule a pod may find none until old nodes are gone; " +
				"its workload has one pod less for so long",
			Fix: "set nodeTaintsPolicy: Honor in its topologySpreadConstraints, or give it more pods",
		},
	}
}

func ingressChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP3301",
			Severity: findings.Warning,
			Run:      checkSources,
			Claim:    "nobody needs to see the addresses of clients from outside",
			Why: "while a Service has externalTrafficPolicy Cluster its pods see the address of a node instead of the client's: lists of allowed " +
				"addresses, rate limits and logs are about nodes then",
			Fix: "let addresses of all nodes pass meanwhile, use PROXY protocol, or set spec.nodes.ingress.mode: Leave and have pods on new nodes " +
				"before load balancers lead there",
		},
		{
			Code: "RP3302", Severity: findings.Blocking, Run: checkRecords,
			Claim: "every record in DNS can be moved",
			Why:   "a name that leads to a load balancer that is gone leads nowhere",
			Fix:   "see to what the message says; values that are neither in from nor in to belong to somebody else",
		},
	}
}

func controlPlaneChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP3401",
			Severity: findings.Blocking,
			Run:      checkEtcd,
			Claim:    "every member of etcd is healthy, and has a vote",
			Why:      "while one member is missing, etcd does not survive that another one changes",
			Fix:      "mend or remove the member; clear alarms when their reason is gone (etcdctl alarm disarm); run replumb where it reaches all members",
		},
		{
			Code: "RP3402", Severity: findings.Warning, Run: checkOdd,
			Claim: "etcd survives the loss of a member",
			Why:   "with one or two members any one that fails takes the API with it, during the migration as at any other time",
			Fix:   "run three or five control planes",
		},
	}
}
