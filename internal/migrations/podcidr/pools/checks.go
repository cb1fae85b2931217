package pools

import (
	"slices"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
)

// Input is what the checks look at.
type Input struct {
	podmove.Input
	Pools *Inventory
}

func (s *Inventory) Check(facts podmove.Facts) findings.Findings {
	in := Input{Pools: s, Input: podmove.Input{
		Facts: facts, Inventory: &s.Inventory, Fates: s.Fates(s.Leaving(engine.Forward, time.Time{})), Taken: s.otherPools(),
	}}
	return findings.Run(Checks(), in)
}

// otherPools are those that are no target.
func (s *Inventory) otherPools() []podmove.Taken {
	var all []podmove.Taken
	for i := range s.Calico.Pools {
		if p := &s.Calico.Pools[i]; !slices.Contains(s.Spec.To, p.CIDR) {
			all = append(all, podmove.Taken{Object: "IPPool " + p.Name, What: "pool " + p.Name + " of", Range: p.CIDR})
		}
	}
	return all
}

// Checks are those of clusters with pools, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return podmove.Ordered(
		findings.Of(func(in Input) podmove.Input { return in.Input }, podmove.Checks()),
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("Pools", poolChecks()...),
		findings.Group("Network", networkChecks()...),
		findings.Group("Workloads", workloadChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2002", Severity: findings.Blocking, Run: checkDatastore,
			Claim: "Calico's datastore is ready",
			Why:   "while it is locked, no pod gets an address: every pod that is restarted would stay without",
			Fix:   "finish what locked it (an upgrade, calicoctl datastore migrate), or unlock it: calicoctl datastore migrate unlock",
		},
		{
			Code: "RP2004", Severity: findings.Blocking, Run: checkOperator,
			Claim: "the pools belong to the migration alone, and no operator restores them",
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
			Code: "RP2103", Severity: findings.Blocking, Run: checkCapacity,
			Claim: "each target has blocks for every node and addresses for every pod",
			Why:   "a node that finds no block left borrows single addresses of others, or gives pods none at all",
			Fix:   "choose a wider target, or smaller blocks in spec.podCIDR.blockSize",
		},
		{
			Code: "RP2104", Severity: findings.Blocking, Run: checkSelectors,
			Claim: "every node has a pool among the targets",
			Why:   "on a node that no enabled pool selects, pods get no address",
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
			Code: "RP2203", Severity: findings.Blocking, Run: checkPins,
			Claim: "objects that stay are free of references to pools that go",
			Why:   "a pod that asks for a disabled pool gets no address, and does not start",
			Fix: "take the annotation out, or name the target's pool in it, before pods are restarted; take ipv4_pools out of the ipam section " +
				"of the CNI configuration, and restart the DaemonSet calico-node, which writes it to the nodes",
		},
		{
			Code: "RP2204", Severity: findings.Blocking, Run: checkReservable,
			Claim: "Calico can reserve the addresses of tunnels",
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
			Code: "RP2304", Severity: findings.Warning, Run: checkControllerManager,
			Claim: "the controller manager leaves the migration's ranges to the migration",
			Why: "with --allocate-node-cidrs it gives every node a podCIDR of --cluster-cidr. Calico's IPAM ignores " +
				"it, and whatever reads it takes the wrong addresses for pods. The controller manager does not start " +
				"again with a range that lacks the nodes' podCIDRs",
			Fix: "set --allocate-node-cidrs=false on every controller manager, with kubeadm also in controllerManager.extraArgs of ConfigMap " +
				"kubeadm-config, with Cluster API of the KubeadmControlPlane instead; leave --cluster-cidr as it is for as long as nodes have a podCIDR of it",
		},
		{
			Code: "RP2305", Severity: findings.Warning, Run: checkTunnels,
			Claim: "every tunnel between nodes keeps its address",
			Why: "with the old address the kernel forgets what was masqueraded with it. Connections end that " +
				"kube-proxy masquerades on their way through a tunnel, and answers to such datagrams under way are " +
				"lost. Those are connections to a pod of another node: from a NodePort or load balancer of one node, " +
				"or from a node itself to a Service",
			Fix: "start in a quiet hour (spec.windows); externalTrafficPolicy: Local for Services whose clients must not connect again",
		},
		{
			Code: "RP2306", Severity: findings.Warning, Run: checkTunnelsMoved,
			Claim: "packets between nodes continue while tunnels change their addresses",
			Why: "tunnels of VXLAN get their addresses before Calico has to move them, and meanwhile nodes send by routes that do not change. Those of " +
				"IPIP do not, nor where WireGuard encrypts, nor with spec.podCIDR.tunnels.mode: Leave: there Calico moves all tunnels at once, and what is " +
				"under way is lost for some tenths of a second. TCP sends it again, clients of DNS over UDP ask again after the time-out of their resolver",
			Fix: "leave tunnels.mode at Hold; else start in a quiet hour (spec.windows), and give pods that cannot wait 5 s for DNS a dnsConfig with the " +
				"option timeout:1",
		},
	}
}

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2403", Severity: findings.Warning, Run: checkLeft,
			Claim: "every pod with an old address can be restarted",
			Why:   "finish waits until no pod has an old address",
			Fix:   "restart them yourself after apply, or set spec.podCIDR.roll.barePods: Evict, which ends pods without an owner for good",
		},
	}
}
