package cni

import (
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/spare"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// Input is what the checks look at.
type Input struct {
	Survey *Survey
	Access []cluster.Answer
	// Image is what pods run that look at nodes and clean them.
	Image string
	// AbsentSecrets are the pull secrets of that image that are not there.
	AbsentSecrets []findings.Result
	// Others are all Migrations of the cluster.
	Others []v1alpha1.Migration
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Networks", networkChecks()...),
		findings.Group("kube-proxy", replaceChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("Workloads", slices.Concat(workloadChecks(), againChecks())...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP5001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way leaves pods without a network until someone grants it",
			Fix:   "bind the roles in deploy/rbac-cni.yaml to the user: replumb rbac -f FILE --user NAME prints them",
		},
		{
			Code: "RP5002", Severity: findings.Blocking, Run: checkOthers,
			Claim: "this is the only migration under way",
			Why:   "what another migration counts on, such as canaries and addresses, is gone without a network",
			Fix:   "finish it or roll it back first",
		},
		{
			Code: "RP5003", Severity: findings.Blocking, Run: checkNodes,
			Claim: "every node is ready",
			Why:   "a node that does not answer keeps the old network, and comes back with it",
			Fix:   "repair the node, or delete it",
		},
		{
			Code:     "RP5004",
			Severity: findings.Blocking,
			Run:      checkWebhooks,
			Claim:    "admission webhooks answer while pods are without a network",
			Why: "a webhook with failurePolicy Fail that is answered by pods refuses everything that it cannot be asked about: the pods of the " +
				"new network, without which it cannot answer",
			Fix: "leave kube-system, replumb-system and the namespaces of the manifests out by its namespaceSelector, or set failurePolicy: Ignore; " +
				"where a hook before phase remove does that, name the webhook in spec.cni.vouch.webhooks: what a hook does cannot be seen before",
		},
		{
			Code: "RP5005", Severity: findings.Warning, Run: checkDowntime,
			Claim: "clients are gone before pods lose their network",
			Why:   "requests to this cluster fail until its pods have been recreated",
			Fix:   "lead traffic to another cluster first (spec.mirror), and leave spec.cni.traffic.proof at Counters",
		},
		{
			Code: "RP5006", Severity: findings.Warning, Run: func(in Input) []findings.Result { return agentset.ByTag(in.Image) },
			Claim: "the image that cleans nodes is named by its digest",
			Why:   "it runs as root in the network of every node, and who can move a tag in the registry decides what it is",
			Fix:   "name it as NAME@sha256:DIGEST in spec.cni.canary.image",
		},
		pull.Check("RP5007", func(in Input) []findings.Result { return in.AbsentSecrets }),
		{
			Code:     "RP5008",
			Severity: findings.Blocking,
			Run:      checkIgnored,
			Claim:    "every client address is watched",
			Why: "a balancer that forwards connections as its own has one address for health checks and for all of its clients: to leave that " +
				"out proves nothing, and the clients are cut off",
			Fix: "see at the balancer that no client is led to this cluster any more, and say so for the range in spec.cni.vouch.quiet",
		},
	}
}

func networkChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP5101",
			Severity: findings.Blocking,
			Run:      checkFrom,
			Claim:    "the cluster has one network for pods, the one that is to go",
			Why:      "what is not known cannot be removed, and two networks on one cluster are in someone else's hands",
			Fix: "see which DaemonSets there are; name the old network in spec.cni.from, also where only files on nodes give pods addresses of their " +
				"Node's podCIDR (host-local)",
		},
		{
			Code:     "RP5102",
			Severity: findings.Blocking,
			Run:      checkPair,
			Claim:    "replumb can replace the one network by the other",
			Why:      "what a network leaves on nodes is different for each, and half of it removed is worse than all of it there",
			Fix: "replumb goes from flannel to Calico, from Calico to flannel, with mode InPlace from both to Cilium and from host-local to Calico and " +
				"Cilium, and with mode Drained from Weave to Calico and flannel; for others, replace the nodes or the cluster",
		},
		{
			Code:     "RP5103",
			Severity: findings.Blocking,
			Run:      checkKeepers,
			Claim:    "the old network stays away once it is removed",
			Why:      "an operator, an addon manager or GitOps recreates what is deleted: two networks on one node keep each other from working",
			Fix:      "take the old network out of its hands first: remove it there without pruning, or pause it",
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
		{
			Code:     "RP5107",
			Severity: findings.Blocking,
			Run:      checkBeside,
			Claim:    "the new network can run beside the old one",
			Why:      "with mode InPlace both are on every node: what they share, one takes from the other",
			Fix:      "give the new one a range and a UDP port of its own, and the manifests of its vendor; or replace the network of a drained cluster (mode: Drained)",
		},
	}
}

func rangeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP5201",
			Severity: findings.Blocking,
			Run:      checkTarget,
			Claim:    "the manifests name the pod range, and it is the one that is wanted",
			Why:      "a network that makes up a range of its own can take one that others have",
			Fix:      "set the range in the manifests (net-conf.json of flannel, CALICO_IPV4POOL_CIDR or an IPPool of Calico), and spec.cni.podCIDR to the same",
		},
		{
			Code: "RP5202", Severity: findings.Blocking, Run: checkOverlaps,
			Claim: "the pod range is clear of Services and nodes",
			Why:   "of two that have one address, packets reach only one",
			Fix:   "choose another range",
		},
		{
			Code:     "RP5203",
			Severity: findings.Blocking,
			Run:      checkProxy,
			Claim:    "kube-proxy recognises the new pod range as part of the cluster",
			Why:      "what it takes for coming from outside it gives the address of a node: NetworkPolicies then see a node instead of a pod",
			Fix: "set clusterCIDR in kube-proxy's configuration to one range that covers old and new pods (it takes one of each family), or use " +
				"detectLocalMode: InterfaceNamePrefix with pod.interfaceNamePrefix cali; then restart it on every node. Where the API does not " +
				"show its configuration, look at it on every node, and say so by spec.cni.vouch.kubeProxy: true",
		},
		{
			Code:     "RP5204",
			Severity: findings.Blocking,
			Run:      checkNodeRanges,
			Claim:    "every node has a range of its own, where pods get their addresses from that",
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
			Why:   "what a policy forbids is open to everybody when nothing makes it hold",
			Fix:   "see to the policies yourself, and set spec.cni.policies: Drop",
		},
		{
			Code: "RP5302", Severity: findings.Warning, Run: checkDropped,
			Claim: "every policy stays enforced",
			Why:   "what a policy forbids is open to everybody when nothing makes it hold",
			Fix:   "close it off otherwise",
		},
		{
			Code: "RP5303", Severity: findings.Warning, Run: checkGained,
			Claim: "the same policies are enforced before and after",
			Why:   "a policy that no one ever enforced may be wrong, and no one has noticed",
			Fix:   "read the policies, and try them out on a cluster that enforces them",
		},
		{
			Code: "RP5304", Severity: findings.Warning, Run: checkBare,
			Claim: "every pod has an owner that recreates it",
			Why:   "replumb recreates pods that no one owns as they were, but what was in them is gone, and a moment passes",
			Fix:   "give it to a Deployment or StatefulSet if that matters",
		},
		{
			Code: "RP5305", Severity: findings.Warning, Run: checkJobs,
			Claim: "every Job has ended",
			Why:   "its pod ends and the Job starts over, which may count as a failure",
			Fix:   "wait until it is done, and suspend CronJobs",
		},
		{
			Code: "RP5306", Severity: findings.Warning, Run: checkHostPorts,
			Claim: "pods with a port of their node keep it",
			Why:   "hostPort needs the plugin portmap in the CNI configuration",
			Fix:   "add portmap to the plugins in the manifests",
		},
		{
			Code:     "RP5307",
			Severity: findings.Warning,
			Run:      checkStays,
			Claim:    "every pod leaves its node by itself",
			Why:      "with mode InPlace a node waits until pods without an owner and those of Jobs have ended, and gives up in the end",
			Fix: "delete pods without an owner when their node is to go, or set spec.cni.inPlace.barePods: Evict (they do not come back); wait for " +
				"Jobs, or set spec.cni.inPlace.jobWait",
		},
		{
			Code:     "RP5308",
			Severity: findings.Warning,
			Run:      checkSingles,
			Claim:    "every workload has another pod while one moves",
			Why:      "with mode InPlace a node is emptied: a StatefulSet with one pod, or a Deployment that ends its pods first, does not answer meanwhile",
			Fix:      "scale it, give it a rolling update with maxUnavailable 0, or do it in a window when it may pause",
		},
		{
			Code:     "RP5309",
			Severity: findings.Blocking,
			Run:      checkHidden,
			Claim:    "every NetworkPolicy sees the pods that it names while both networks run",
			Why: "between another network and Cilium, packets carry the address of a node: a policy of the old network refuses pods that it lets in, " +
				"and Cilium enforces none before finish",
			Fix: "delete the policies for the time of the switch and keep their files, or replace the network of a drained cluster",
		},
	}
}

// againChecks are about pods that are made once more.
func againChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP5310",
			Severity: findings.Warning,
			Run:      checkStaysAgain,
			Claim:    "every pod can be recreated once more",
			Why: "spec.cni.again recreates what an owner makes again: pods without one stay as they are, or end with their node where nodes are replaced, " +
				"and those of Jobs go on, or start over",
			Fix: "delete pods without an owner and make them again yourself, and wait for Jobs, if they had trouble with the network",
		},
		spare.Check("RP5311", root+".prepare", func(in Input) *spare.Found { return in.Survey.Spares }),
	}
}
