package switchover

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Input is what the checks look at.
type Input struct {
	Strategy  Strategy
	Inventory *Inventory
	Access    []access.Answer
	// Image is what pods run that look at nodes and clean them.
	Image string
	// AbsentSecrets are the pull secrets of that image that are not there.
	AbsentSecrets []findings.Result
	// Others are all Migrations of the cluster.
	Others []v1alpha1.Migration
}

// Checks have something to say whatever the strategy.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Networks", networkChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("Workloads", workloadChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP5001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way leaves pods without a network until someone grants it",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -",
		},
		{
			Code: "RP5002", Severity: findings.Blocking, Run: checkOthers,
			Claim: "this is the only migration under way",
			Why:   "another migration counts on canaries and addresses, which are gone without a network",
			Fix:   "finish it or roll it back first",
		},
		{
			Code: "RP5003", Severity: findings.Blocking, Run: checkNodes,
			Claim: "every node is ready",
			Why:   "a node that does not answer keeps the old network, and comes back with it",
			Fix:   "repair the node, or delete it",
		},
		{
			Code: "RP5006", Severity: findings.Warning, Run: func(in Input) []findings.Result { return agentset.ByTag(in.Image) },
			Claim: "the image that cleans nodes is named by its digest",
			Why:   "it runs as root in the network of every node, and who can move a tag in the registry decides what it is",
			Fix:   "name it as NAME@sha256:DIGEST in spec.image",
		},
		pull.Check("RP5007", func(in Input) []findings.Result { return in.AbsentSecrets }),
	}
}

func networkChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP5101", Severity: findings.Blocking, Run: checkFrom,
			Claim: "the cluster has one network for pods, the one that is to go",
			Why:   "an unknown network cannot be removed, and two networks on one cluster are in someone else's hands",
			Fix: "see which DaemonSets there are; name the old network in spec.cni.from, also where only files on nodes give pods addresses of their " +
				"Node's podCIDR (host-local)",
		},
		{
			Code: "RP5102", Severity: findings.Blocking, Run: checkPair,
			Claim: "replumb can replace the one network by the other",
			Why:   "each CNI leaves different things on nodes, and a partial clean-up is worse than none",
			Fix: "replumb goes from flannel to Calico, from Calico to flannel, with mode InPlace from both to Cilium and from host-local to Calico and " +
				"Cilium, and with mode Drained from Weave to Calico and flannel; for others, replace the nodes or the cluster",
		},
		{
			Code: "RP5103", Severity: findings.Blocking, Run: checkKeepers,
			Claim: "the old network stays away once it is removed",
			Why:   "an operator, an addon manager or GitOps recreates what is deleted: two networks on one node keep each other from working",
			Fix:   "take the old network out of its hands first: remove it there without pruning, or pause it",
		},
		{
			Code: "RP5104", Severity: findings.Warning, Run: checkHelm,
			Claim: "the old network is free of Helm releases",
			Why:   "Helm keeps the release, and its next upgrade brings the network back",
			Fix:   "when the migration is finished, forget the release: helm uninstall NAME --no-hooks, or delete its Secrets",
		},
		{
			Code: "RP5105", Severity: findings.Blocking, Run: checkManifests,
			Claim: "the manifests are readable and belong to the new network",
			Why:   "they are applied when the old network is gone",
			Fix:   "render them again, such as by helm template, and name the files in spec.cni.manifests",
		},
		{
			Code: "RP5106", Severity: findings.Blocking, Run: checkReach,
			Claim: "the new network runs on every node",
			Why:   "a node on which its DaemonSet does not run has no network at all",
			Fix:   "give the DaemonSet hostNetwork: true, a toleration for everything, and no nodeSelector that leaves nodes out",
		},
	}
}

func rangeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP5201", Severity: findings.Blocking, Run: checkTarget,
			Claim: "the manifests name the pod range, and it is the one that is wanted",
			Why:   "a network that makes up a range of its own can take one that others have",
			Fix:   "set the range in the manifests (net-conf.json of flannel, CALICO_IPV4POOL_CIDR or an IPPool of Calico), and spec.cni.podCIDR to the same",
		},
		{
			Code: "RP5202", Severity: findings.Blocking, Run: checkOverlaps,
			Claim: "the pod range is clear of Services and nodes",
			Why:   "two things with the same address: packets reach only one",
			Fix:   "choose another range",
		},
		{
			Code: "RP5203", Severity: findings.Blocking, Run: checkProxy,
			Claim: "kube-proxy recognises the new pod range as part of the cluster",
			Why:   "it gives traffic that it takes for coming from outside the address of a node: NetworkPolicies then see a node instead of a pod",
			Fix: "set clusterCIDR in kube-proxy's configuration to one range that covers old and new pods (it takes one of each family), or use " +
				"detectLocalMode: InterfaceNamePrefix with pod.interfaceNamePrefix cali; then restart it on every node. Where the API does not " +
				"show its configuration, look at it on every node, and say so by spec.cni.vouch.kubeProxy: true",
		},
		{
			Code: "RP5204", Severity: findings.Blocking, Run: checkNodeRanges,
			Claim: "every node has a range of its own, where pods get their addresses from that",
			Why: "flannel and host-local give out what spec.podCIDR of the node says; flannel stops if there is none or it lies outside of its network, and " +
				"what host-local gave out cannot be distinguished from other addresses without it",
			Fix: "run the controller manager with --allocate-node-cidrs, and for flannel with --cluster-cidr as in its net-conf.json; delete a node that " +
				"is to have another range, and have it join again",
		},
	}
}

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP5301", Severity: findings.Blocking, Run: checkLost,
			Claim: "every policy of the old network is kept",
			Why:   "a policy that nothing enforces forbids nothing",
			Fix:   "see to the policies yourself, and set spec.cni.policies: Drop",
		},
		{
			Code: "RP5302", Severity: findings.Warning, Run: checkDropped,
			Claim: "every policy stays enforced",
			Why:   "a policy that nothing enforces forbids nothing",
			Fix:   "close it off otherwise",
		},
		{
			Code: "RP5303", Severity: findings.Warning, Run: checkGained,
			Claim: "the same policies are enforced before and after",
			Why:   "a policy that no one ever enforced may be wrong, and no one has noticed",
			Fix:   "read the policies, and try them out on a cluster that enforces them",
		},
		{
			Code: "RP5306", Severity: findings.Warning, Run: checkHostPorts,
			Claim: "pods with a port of their node keep it",
			Why:   "hostPort needs the plugin portmap in the CNI configuration",
			Fix:   "add portmap to the plugins in the manifests",
		},
		{
			Code: "RP5310", Severity: findings.Warning, Run: checkStaysAgain,
			Claim: "every pod can be recreated once more",
			Why: "spec.cni.again recreates what an owner makes again: pods without one stay as they are, or end with their node where nodes are replaced, " +
				"and those of Jobs go on, or start over",
			Fix: "delete pods without an owner and make them again yourself, and wait for Jobs, if they had trouble with the network",
		},
	}
}
