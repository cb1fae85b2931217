package podcidr

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Input is what the checks look at.
type Input struct {
	Survey *Survey
	// ServiceCIDRs of the cluster; none before Kubernetes 1.33.
	ServiceCIDRs []networkingv1.ServiceCIDR
	Live         cluster.Live
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("Pools", poolChecks()...),
		findings.Group("Nodes", nodeChecks()...),
		findings.Group("Network", networkChecks()...),
		findings.Group("Workloads", workloadChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way has to wait for somebody to grant it",
			Fix:   "grant the rights in deploy/rbac-pod-cidr.yaml",
		},
		{
			Code: "RP2002", Severity: findings.Blocking, Run: checkDatastore,
			Claim: "Calico's datastore is ready",
			Why:   "while it is locked, no pod gets an address: every pod that is restarted would stay without",
			Fix:   "finish what locked it (an upgrade, calicoctl datastore migrate), or unlock it: calicoctl datastore migrate unlock",
		},
		{
			Code: "RP2003", Severity: findings.Blocking, Run: checkNodesReady,
			Claim: "every node is ready",
			Why:   "pods of a node that is not ready keep their old addresses, and a target cannot be tried out there",
			Fix:   "mend the node, or drain and delete it",
		},
		{
			Code: "RP2004", Severity: findings.Blocking, Run: checkOperator,
			Claim: "no operator puts back pools that the migration changes",
			Why: "the Tigera operator keeps the pools that an Installation lists as it lists them: it enables an old pool again, and " +
				"takes away a target that it does not know",
			Fix: "change the Installation, not the pools, and the migration does the rest: beside the old pool in " +
				"spec.calicoNetwork.ipPools add one of the target's range with the same encapsulation and NAT, and give the old one " +
				"disableNewAllocations: true; kubectl edit installations.operator.tigera.io default. Take the old one out before finish",
		},
	}
}

func rangeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2101", Severity: findings.Blocking, Run: checkOverlaps,
			Claim: "no target overlaps another range of the cluster",
			Why:   "an address that two things have answers for one of them only",
			Fix:   "choose another target",
		},
		{
			Code: "RP2102", Severity: findings.Blocking, Run: checkReserved,
			Claim: "no target has loopback, link-local, multicast or reserved addresses",
			Why:   "hosts do not route such addresses, or give them a meaning of their own",
			Fix:   "choose a private range, such as one in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16",
		},
		{
			Code: "RP2103", Severity: findings.Blocking, Run: checkCapacity,
			Claim: "each target has blocks for every node and addresses for every pod",
			Why:   "a node that finds no block left borrows single addresses of others, or gives pods none at all",
			Fix:   "choose a wider target, or smaller blocks in spec.podCIDR.blockSize",
		},
		{
			Code:     "RP2104",
			Severity: findings.Blocking,
			Run:      checkSelectors,
			Claim:    "every node has a pool among the targets",
			Why:      "on a node that no enabled pool selects, pods get no address",
			Fix: "label the nodes so that the nodeSelector of an old pool, which its target takes over, selects them; or make a pool of the " +
				"target's range yourself, with another nodeSelector",
		},
	}
}

func poolChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2201", Severity: findings.Blocking, Run: checkOldPools,
			Claim: "every range in from is that of a pool for pods",
			Why:   "there is nothing to take over from otherwise",
			Fix:   "name ranges of pools: kubectl get ippools.crd.projectcalico.org",
		},
		{
			Code: "RP2202", Severity: findings.Blocking, Run: checkNewPools,
			Claim: "a pool that already has a target's range gives addresses to pods",
			Why:   "pods that find no pool stay without an address",
			Fix:   "enable it and allow Workload in allowedUses, or delete it and let the migration make one",
		},
		{
			Code:     "RP2203",
			Severity: findings.Blocking,
			Run:      checkPins,
			Claim:    "nothing that stays pins pods to a pool that goes",
			Why:      "a pod that asks for a disabled pool gets no address, and does not start",
			Fix: "take the annotation out, or name the target's pool in it, before pods are restarted; take ipv4_pools out of the ipam section " +
				"of the CNI configuration, and restart the DaemonSet calico-node, which writes it to the nodes",
		},
		{
			Code:     "RP2204",
			Severity: findings.Blocking,
			Run:      checkReservable,
			Claim:    "Calico can reserve the addresses that tunnels have",
			Why: "nodes keep the old addresses of their tunnels until finish; should the migration be rolled back, Calico must give none of " +
				"them to a pod. It has IPReservations since v3.22",
			Fix: "upgrade Calico, or set spec.podCIDR.tunnels.mode: Leave: then what nodes themselves have open to pods of other nodes hangs " +
				"when tunnels move",
		},
	}
}

func networkChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP2301",
			Severity: findings.Blocking,
			Run:      checkProxyRange,
			Claim:    "kube-proxy takes addresses of the targets for pods",
			Why: "it translates the source of what it does not take for a pod when it calls a Service: policies then see the node's address " +
				"and refuse, and services see no clients (projectcalico/calico#10907)",
			Fix: "set clusterCIDR in kube-proxy's configuration to one range that covers old and new pods (it takes one of each family), or use " +
				"detectLocalMode: InterfaceNamePrefix with pod.interfaceNamePrefix cali; then restart kube-proxy on " +
				"every node: kubectl -n kube-system rollout restart daemonset kube-proxy",
		},
		{
			Code:     "RP2302",
			Severity: findings.Blocking,
			Run:      checkMasquerade,
			Claim:    "the masquerade agent takes addresses of the targets for pods",
			Why:      "it translates the source of what pods send to other pods: policies then see the node's address and refuse",
			Fix: "add the targets to nonMasqueradeCIDRs in the agent's ConfigMap (kubectl -n kube-system edit configmap ip-masq-agent), which " +
				"it reads again by itself within a minute",
		},
		{
			Code:     "RP2303",
			Severity: findings.Warning,
			Run:      checkKOps,
			Claim:    "on a cluster of kOps, nonMasqueradeCIDR covers the targets",
			Why:      "nodes translate the source of what pods send outside of that range, to other pods too; it is not written in the cluster itself",
			Fix:      "compare kops get cluster -o yaml: spec.nonMasqueradeCIDR has to contain the targets before apply",
		},
		{
			Code:     "RP2304",
			Severity: findings.Warning,
			Run:      checkControllerManager,
			Claim:    "the controller manager gives nodes no ranges of what the migration empties or fills",
			Why: "with --allocate-node-cidrs it gives every node a podCIDR of --cluster-cidr, which Calico's IPAM does not look at, and whatever " +
				"does look at it takes the wrong addresses for pods; it does not start again with a range that the nodes' podCIDRs are not in",
			Fix: "set --allocate-node-cidrs=false on every controller manager; leave --cluster-cidr as it is for as long as nodes have a podCIDR of it",
		},
		{
			Code:     "RP2305",
			Severity: findings.Warning,
			Run:      checkTunnels,
			Claim:    "no tunnel between nodes gets another address",
			Why: "when the old pool is disabled, Calico takes about a tenth of a second to give each tunnel another address and to tell the other " +
				"nodes. What is under way in that moment is lost: TCP sends it again, clients of DNS over UDP ask again after the time-out of " +
				"their resolver. Connections end that kube-proxy masquerades on their way through a tunnel: from a NodePort or load balancer of one " +
				"node, or from a node itself to a Service, to a pod of another node",
			Fix: "start in a quiet hour (spec.windows); give pods that cannot wait 5 s for DNS a dnsConfig with the option timeout:1; " +
				"externalTrafficPolicy: Local for Services whose clients must not connect again",
		},
	}
}

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2401", Severity: findings.Blocking, Run: checkBudgets,
			Claim: "no PodDisruptionBudget over pods that have to be restarted forbids every disruption",
			Why:   "the migration would wait for it for ever",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
		{
			Code:     "RP2402",
			Severity: findings.Warning,
			Run:      checkSingles,
			Claim:    "no workload that is restarted stands still meanwhile",
			Why:      "a workload with a single pod that ends before the next one is ready answers nobody in between",
			Fix: "give it a second pod for the time of the migration (name Deployments in spec.podCIDR.prepare.deployments), or a strategy " +
				"that starts the new pod first",
		},
		{
			Code: "RP2403", Severity: findings.Warning, Run: checkLeft,
			Claim: "every pod with an old address can be restarted",
			Why:   "finish waits until no pod has an old address",
			Fix:   "restart them yourself after apply, or set spec.podCIDR.roll.barePods: Evict, which ends pods without an owner for good",
		},
		{
			Code: "RP2404", Severity: findings.Warning, Run: checkUnready,
			Claim: "every workload that is restarted is complete now",
			Why:   "a workload that is in trouble before is not mended by a restart, and stops the migration",
			Fix:   "mend it first, or scale it to zero",
		},
		{
			Code: "RP2405", Severity: findings.Warning, Run: checkReferences,
			Claim: "no old range is written down",
			Why:   "a NetworkPolicy, configuration or firewall that names the range of pods treats pods with new addresses as strangers",
			Fix:   "add the target beside the old range before apply; take the old one out after finish",
		},
		{
			Code: "RP2406", Severity: findings.Warning, Run: checkLocalData,
			Claim: "no pod that is restarted keeps data of its own on its node",
			Why:   "what lies in an emptyDir volume is gone with the pod",
			Fix:   "save what matters, or leave it to the workload if it fills the volume again by itself, as caches do",
		},
	}
}
