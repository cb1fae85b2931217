package podmove

import (
	"cmp"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
)

// Facts are what checks look at beside the survey.
type Facts struct {
	ServiceCIDRs []networkingv1.ServiceCIDR
	Others       []v1alpha1.Migration
	// AbsentSecrets are the pull secrets of agents and canaries that are not there.
	AbsentSecrets []findings.Result
	Live          inventory.Live
}

// Input is what the checks of both strategies look at.
type Input struct {
	Facts
	Inventory *Inventory
	Fates     Fates
	// Taken are the ranges that only the strategy knows of.
	Taken []Taken
	// ByNode says that pods get addresses of their Node's range.
	ByNode bool
}

// Taken is a range that targets must not overlap.
type Taken struct {
	// Object that has it, and What it is in words.
	Object, What string
	Range        netip.Prefix
}

// Object names one as findings do.
func Object(kind string, o client.Object) string {
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// Ordered are checks in the order in which they are shown.
func Ordered[In any](lists ...[]findings.Check[In]) []findings.Check[In] {
	groups := []string{"Cluster", "Ranges", "Pools", "Nodes", "Network", "Workloads"}
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b findings.Check[In]) int {
		return cmp.Or(cmp.Compare(slices.Index(groups, a.Group), slices.Index(groups, b.Group)), cmp.Compare(a.Code, b.Code))
	})
	return all
}

// Checks are those that have something to say of any cluster.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("Network", networkChecks()...),
		findings.Group("Workloads", workloadChecks()...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2001", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way has to wait until it is granted",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -",
		},
		{
			Code: "RP2003", Severity: findings.Blocking, Run: checkNodesReady,
			Claim: "every node is ready",
			Why:   "pods of a node that is not ready keep their old addresses, and a target cannot be tried out there",
			Fix:   "repair the node, or drain and delete it",
		},
		pull.Check("RP2005", func(in Input) []findings.Result { return in.AbsentSecrets }),
		{
			Code: "RP2006", Severity: findings.Blocking, Run: checkOthers,
			Claim: "this is the only migration under way",
			Why:   "two migrations restart, scale and drain the same pods, and each counts on what the other changes",
			Fix:   "finish it or roll it back first; a mirror that serves meanwhile is no obstacle",
		},
	}
}

func rangeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2101", Severity: findings.Blocking, Run: checkOverlaps,
			Claim: "every target is clear of the cluster's other ranges",
			Why:   "an address that two things have answers for one of them only",
			Fix:   "choose another target",
		},
		{
			Code: "RP2102", Severity: findings.Blocking, Run: checkReserved,
			Claim: "every target is clear of loopback, link-local, multicast and reserved addresses",
			Why:   "hosts do not route such addresses, or give them a meaning of their own",
			Fix:   "choose a private range, such as one in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16",
		},
		{
			Code: "RP2105", Severity: findings.Warning, Run: checkShared,
			Claim: "every target is clear of 100.64.0.0/10, shared address space (RFC 6598)",
			Why: "Tailscale gives its machines addresses in it and drops other traffic from it, so that nodes that run it lose what pods send, and " +
				"some clouds and providers use it inside",
			Fix: "choose another target (replumb ranges proposes some), or make sure that none of these is in use in or near the cluster",
		},
	}
}

func networkChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2301", Severity: findings.Blocking, Run: checkProxyRange,
			Claim: "kube-proxy takes addresses of the targets for pods",
			Why: "it translates the source of what it does not take for a pod when it calls a Service: policies then see the node's address " +
				"and refuse, and services see no clients (projectcalico/calico#10907)",
			Fix: "set clusterCIDR in kube-proxy's configuration to one range that covers old and new pods (it takes one of each family), or use " +
				"detectLocalMode: InterfaceNamePrefix with pod.interfaceNamePrefix cali; then restart kube-proxy on " +
				"every node: kubectl -n kube-system rollout restart daemonset kube-proxy",
		},
		{
			Code: "RP2302", Severity: findings.Blocking, Run: checkMasquerade,
			Claim: "the masquerade agent takes addresses of the targets for pods",
			Why:   "it translates the source of what pods send to other pods: policies then see the node's address and refuse",
			Fix: "add the targets to nonMasqueradeCIDRs in the agent's ConfigMap (kubectl -n kube-system edit configmap ip-masq-agent), which " +
				"it reads again by itself within a minute",
		},
		{
			Code: "RP2303", Severity: findings.Warning, Run: checkKOps,
			Claim: "on a cluster of kOps, nonMasqueradeCIDR covers the targets",
			Why:   "nodes translate the source of what pods send outside of that range, to other pods too; it is not written in the cluster itself",
			Fix:   "compare kops get cluster -o yaml: spec.nonMasqueradeCIDR has to contain the targets; apply waits until you confirm it",
		},
		{
			Code: "RP2307", Severity: findings.Warning, Run: checkKubeadmRange,
			Claim: "kubeadm would write the range of pods that controller managers run with",
			Why: "kubeadm upgrade, and each control plane that joins, write --cluster-cidr from ConfigMap kubeadm-config. In it extraArgs win over " +
				"networking.podSubnet. Another range there, beside manifests that were edited or kubeadm's --patches, comes back then, and a controller " +
				"manager does not start while a Node has a range outside of it",
			Fix: "before apply, bring kubectl -n kube-system edit configmap kubeadm-config and the manifests together. Where a gate asks for podSubnet, change " +
				"what counts, networking.podSubnet or extraArgs, and files in a folder of patches on control planes, of which nothing in the cluster tells",
		},
	}
}

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2401", Severity: findings.Blocking, Run: checkBudgets,
			Claim: "every PodDisruptionBudget over pods that restart allows a disruption",
			Why:   "the migration would wait for it for ever",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
		{
			Code: "RP2402", Severity: findings.Warning, Run: checkSingles,
			Claim: "every workload keeps serving while it is restarted",
			Why:   "a workload with a single pod that ends before the next one is ready gives no answer in between",
			Fix: "give it a second pod for the time of the migration (name Deployments in spec.podCIDR.prepare.deployments), or a strategy " +
				"that starts the new pod first",
		},
		spare.Check("RP2408", Field+".prepare", func(in Input) *spare.Found { return in.Inventory.Spares }),
		{
			Code: "RP2404", Severity: findings.Warning, Run: checkUnready,
			Claim: "every workload that is restarted has all its pods now",
			Why:   "a workload that is in trouble before is not repaired by a restart, and stops the migration",
			Fix:   "repair it first, or scale it to zero",
		},
		{
			Code: "RP2405", Severity: findings.Warning, Run: checkReferences,
			Claim: "manifests and settings are free of the old range",
			Why:   "a configuration or firewall that names the range of pods treats pods with new addresses as strangers",
			Fix: "add the target beside the old range before apply; where one range alone may stand, such as flannel's Network, write one that holds both. Take " +
				"the old one out after finish",
		},
		{
			Code: "RP2407", Severity: findings.Blocking, Run: checkPolicies,
			Claim: "NetworkPolicies treat old and new addresses alike",
			Why:   "one that lets in the old range alone cuts off every pod that has moved, and one that keeps it out alone lets moved pods in",
			Fix:   "add an ipBlock with the target beside the old one, under the same ports, before apply; take the old one out after finish",
		},
		{
			Code: "RP2406", Severity: findings.Warning, Run: checkLocalData,
			Claim: "pods that restart keep no data of their own on their node",
			Why:   "files in an emptyDir volume are gone with the pod",
			Fix:   "save what matters, or leave it to the workload if it fills the volume again by itself, as caches do",
		},
	}
}
