package nodes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Input is what the checks look at.
type Input struct {
	Inventory *Inventory
	Access    []access.Answer
	// EtcdProblem is why its members could not be asked, RecordProblems why names cannot be moved.
	EtcdProblem, EventsProblem error
	RecordProblems             map[string]error
	// EndProblems are why names of the API cannot go yet to what they are to have at last.
	EndProblems   map[string]error
	AbsentSecrets []findings.Result
	Image         string
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
		findings.Group("Agents", lossguard.Checks("RP3210", "RP3211", "", func(in Input) (string, []corev1.Node) {
			return in.Image, in.Inventory.Nodes
		})...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3001", Severity: findings.Blocking, Run: func(in Input) []findings.Result { return migration.Denied(in.Access) },
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way stops there until the right is granted",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -",
		},
		{
			Code: "RP3002", Severity: findings.Warning, Run: checkAutoscalers,
			Claim: "nodes are created and deleted by this migration alone, without an autoscaler",
			Why:   "an autoscaler replaces empty old nodes by nodes of the same kind, and deletes new nodes as long as they are idle",
			Fix: "scale it to zero during the migration, or restrict it to the new network: remove the old node groups from " +
				"cluster-autoscaler, or set the limits of Karpenter's NodePools of the old network to zero",
		},
		pull.Check("RP3003", func(in Input) []findings.Result { return in.AbsentSecrets }),
	}
}

func nodeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3101", Severity: findings.Blocking, Run: checkOld,
			Claim: "there are old nodes",
			Why:   "a migration without old nodes has nothing to move: spec.nodes.old is wrong",
			Fix:   "compare spec.nodes.old with kubectl get nodes --show-labels -o wide; control-plane nodes are excluded",
		},
		{
			Code: "RP3102", Severity: findings.Blocking, Run: checkBoth,
			Claim: "every node is either old or new",
			Why:   "the node would be source and target of the drain",
			Fix:   "choose old and new nodes by a label that distinguishes them, or by the ranges of their networks",
		},
		{
			Code: "RP3103", Severity: findings.Blocking, Run: checkNetworks,
			Claim: "every node has an address of the network it was chosen for",
			Why:   "a new node in the old network has to move again, and an old node that is elsewhere was not meant",
			Fix:   "delete a new node that joined from the wrong network, or correct spec.nodes",
		},
		{
			Code: "RP3104", Severity: findings.Warning, Run: checkOldReady,
			Claim: "every old node is ready",
			Why:   "pods of a node whose kubelet does not answer are not shut down properly, and those with volumes not at all",
			Fix:   "repair the node; or terminate its machine, give it the taint node.kubernetes.io/out-of-service and delete it",
		},
		{
			Code: "RP3105", Severity: findings.Warning, Run: checkCordoned,
			Claim: "every node is schedulable",
			Why:   "a new node that is cordoned takes no pods; an old one may be under maintenance by others",
			Fix:   "kubectl uncordon it, or find out who cordoned it",
		},
		{
			Code: "RP3106", Severity: findings.Blocking, Run: checkRoom,
			Claim: "all pods of old nodes fit on the new nodes that are there",
			Why:   "a pod that is evicted and fits on no node is pending until there is one",
			Fix: "add nodes, or nodes with the labels and without the taints that the pods ask for; or set spec.nodes.join.room: Partial, which " +
				"drains old nodes as far as there is room",
		},
	}
}

func checkAutoscalers(in Input) []findings.Result {
	var out []findings.Result
	for _, s := range in.Inventory.Autoscalers {
		out = append(out, findings.Failed("Deployment "+s.String(), "deployment %s creates and deletes nodes", s))
	}
	return out
}

func checkOld(in Input) []findings.Result {
	if len(in.Inventory.OldNodes()) == 0 {
		return []findings.Result{findings.Failed("", "spec.nodes.old chooses no worker")}
	}
	return nil
}

func checkBoth(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		if n := &in.Inventory.Nodes[i]; in.Inventory.Spec.Old.Has(n) && in.Inventory.Spec.New.Has(n) {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is in spec.nodes.old and in spec.nodes.new", n.Name))
		}
	}
	return out
}

func checkNetworks(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		n := &in.Inventory.Nodes[i]
		for _, set := range []NodeSet{in.Inventory.Spec.Old, in.Inventory.Spec.New} {
			if problem := set.WrongNetwork(n); problem != "" && set.Has(n) {
				out = append(out, findings.Failed("Node "+n.Name, "%s", problem))
			}
		}
	}
	return out
}

func checkOldReady(in Input) []findings.Result {
	var out []findings.Result
	for _, l := range in.Inventory.OldNodes() {
		if l.Node != nil && !l.Ended && !inventory.NodeReady(l.Node) {
			out = append(out, findings.Failed("Node "+l.Name, "node %s is not ready: %s", l.Name, whyNotReady(l.Node)))
		}
	}
	return out
}

func checkCordoned(in Input) []findings.Result {
	var out []findings.Result
	nodes := in.Inventory.NewNodes()
	for _, l := range in.Inventory.OldNodes() {
		if l.Node != nil {
			nodes = append(nodes, l.Node)
		}
	}
	for _, n := range nodes {
		if n.Spec.Unschedulable {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is unschedulable", n.Name))
		}
	}
	return out
}

// checkRoom looks once all new nodes are there. Until then apply does, when they have joined.
func checkRoom(in Input) []findings.Result {
	if room := in.Inventory.Spec.Join.Room; room != v1alpha1.RoomRequired {
		return findings.Skip("spec.nodes.join.room is %s", room)
	}
	if len(in.Inventory.ReadyNewNodes()) < in.Inventory.Wanted() {
		return findings.Skip("the new nodes are not all there: apply looks when they are")
	}
	var out []findings.Result
	for _, m := range in.Inventory.Room() {
		name := m.Pod.Namespace + "/" + m.Pod.Name
		out = append(out, findings.Failed("Pod "+name, "there is no place for pod %s: %s", name, m.Reasons))
	}
	return out
}
