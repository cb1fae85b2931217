package noderanges

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/fieldmanagers"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

func ciliumChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2506", Severity: findings.Blocking, Run: checkCilium,
			Claim: "Cilium's operator has nothing against the range of any node, and none of IPv6 beside it",
			Why: "a range that it could not reserve it may give to a node that joins, and one that another node has it takes away; no move can begin " +
				"at such a node. Of a node whose IPv4 range is not of its pool it reserves no IPv6 range either",
			Fix: "read what the operator says in the status of CiliumNodes (kubectl get ciliumnodes -o yaml), and repair what it names; mirror a " +
				"cluster of both families (spec.mirror)",
		},
		{
			Code: "RP2508", Severity: findings.Blocking, Run: checkOperator,
			Claim: "Cilium's operator runs, and has its pool from cilium-config",
			Why: "it reserves the range of each node that moves; a pool in its command line would win over cilium-config, and without it no node " +
				"that joins gets a range",
			Fix: "repair Deployment kube-system/cilium-operator; move its arguments into the values of Cilium's chart " +
				"(ipam.operator.clusterPoolIPv4PodCIDRList)",
		},
		{
			Code: "RP2509", Severity: findings.Blocking, Run: checkNative,
			Claim: "Cilium takes addresses of both ranges for pods' where it routes natively",
			Why: "agents translate the source of what pods send outside of ipv4-native-routing-cidr, to other pods too, once only one of the ranges is " +
				"within",
			Fix: "set ipv4NativeRoutingCIDR in the values of Cilium's chart to one range that covers both, and restart agents, one node after the other: " +
				"kubectl -n kube-system rollout restart daemonset cilium",
		},
		{
			Code: "RP2512", Severity: findings.Warning, Run: checkRoutes,
			Claim: "routers outside of Cilium lead ranges of nodes to where CiliumNodes have them",
			Why: "with native routing and without auto-direct-node-routes, a cloud, BGP or static routes lead a node's range to it; and routers that learn " +
				"ranges from Cilium by BGP may have filters that name the old one. replumb sees neither",
			Fix: "see to it that each range of the target is routed, and let through, once its CiliumNode has it; replumb stops at the first node that is " +
				"not reached by others, but does not call from outside of the cluster",
		},
		{
			Code: "RP2513", Severity: findings.Warning, Run: checkConfigOwner,
			Claim: "the pool of Cilium's operator stays as replumb leaves it",
			Why: "after a deployment of the old pool, the operator has nothing reserved for nodes that have moved, and gives nodes that join ranges of " +
				"the old one",
			Fix: "set ipam.operator.clusterPoolIPv4PodCIDRList, or the ranges of the CiliumPodIPPool, to the target where they are kept, and have no " +
				"one deploy them until replumb has moved the nodes (suspend Flux's HelmRelease, or Argo CD's Application); deploy them then",
		},
		{
			Code: "RP2514", Severity: findings.Warning, Run: checkTolerant,
			Claim: "pods with addresses leave a node before Cilium's agent restarts there",
			Why: "an agent that starts with another range gives up pods that have addresses of the former one: pods of DaemonSets that tolerate every " +
				"taint reach nothing, and are not reached, until replumb has restarted them, seconds later",
			Fix: "nothing, if others of their kind answer for them; else take the toleration off for the time of the migration",
		},
		{
			Code: "RP2515", Severity: findings.Warning, Run: checkUntried,
			Claim: "replumb was tried with all that Cilium does here",
			Why: "encryption, policies for nodes, gateways and meshes of clusters have rules of their own for addresses of pods; moves beside them were not " +
				"run, nor with versions before 1.20. Other clusters of a mesh must not have the target for their pods",
			Fix: "try it on a cluster that is alike first",
		},
		{
			Code: "RP2516", Severity: findings.Warning, Run: checkHostTunnels,
			Claim: "a node's own network reaches pods of other nodes while Cilium's agent restarts",
			Why: "the agent takes the node's address in the former range away before it sets routes with the next one. Packets that the node itself, and pods on " +
				"its own network, send to pods of other nodes are lost for 2 to 4 s on each node, which replumb's agents see",
			Fix: "with ipam: cluster-pool, leave spec.podCIDR.tunnels.mode at Hold; else choose the hour, and allow for the loss by spec.proof.budget",
		},
	}
}

func checkHostTunnels(in Input) []findings.Result {
	switch {
	case in.Cilium == nil:
		return findings.Skip("pods are not on Cilium")
	case in.Cilium.Config.Native:
		return findings.Skip("Cilium routes natively: packets of nodes have the machine's address")
	case in.Holds:
		return nil
	case in.Pooled:
		return []findings.Result{findings.Failed("", "spec.podCIDR.tunnels.mode is %s", in.Inventory.Spec.Tunnels)}
	}
	return []findings.Result{findings.Failed(configObject, "%s is %s, and packets of nodes go through tunnels", ciliumipam.ModeKey, in.Cilium.Config.Mode)}
}

const notPooled = "Cilium's operator gives no ranges here"

func checkCilium(in Input) (out []findings.Result) {
	if !in.Pooled {
		return findings.Skip(notPooled)
	}
	for i := range in.Ranges {
		r := &in.Ranges[i]
		switch n := in.Cilium.Nodes[r.Node.Name]; {
		case n == nil:
			out = append(out, findings.Failed("Node "+r.Node.Name, "node %s has no CiliumNode", r.Node.Name))
		case r.Node.Annotations[v1alpha1.AnnotationCiliumAgent] != "": // on its way, which waits for the operator
		case n.Problem != "" && in.Cilium.Config.Gives(nodeipam.Range(n.PodCIDRs)):
			out = append(out, findings.Failed("CiliumNode "+n.Name, "ciliumnode %s: %s", n.Name, n.Problem))
		}
	}
	return append(out, in.unreserved()...)
}

// unreserved is a node whose IPv6 range the operator would give to a node that joins meanwhile: it
// looks at that of IPv4 first (reuseIPNets in operator/pkg/ipam/allocator/podcidr).
func (in Input) unreserved() []findings.Result {
	is6 := func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Addr().Is6()
	}
	for _, name := range slices.Sorted(maps.Keys(in.Cilium.Nodes)) {
		if i := slices.IndexFunc(in.Cilium.Nodes[name].PodCIDRs, is6); i >= 0 && in.Cilium.Pool == nil {
			return []findings.Result{findings.Failed("CiliumNode "+name, "ciliumnode %s has %s as well, which a node that joins meanwhile could get",
				name, in.Cilium.Nodes[name].PodCIDRs[i])}
		}
	}
	return nil
}

func checkOperator(in Input) []findings.Result {
	if !in.Pooled {
		return findings.Skip(notPooled)
	}
	const object = "Deployment kube-system/cilium-operator"
	i := slices.IndexFunc(in.Inventory.Workloads.Deployments, func(d appsv1.Deployment) bool {
		return d.Namespace == metav1.NamespaceSystem && d.Spec.Template.Labels["io.cilium/app"] == "operator"
	})
	if i < 0 {
		return []findings.Result{findings.Failed(object, "no deployment in kube-system has pods with the label io.cilium/app=operator")}
	}
	d := &in.Inventory.Workloads.Deployments[i]
	var out []findings.Result
	const away = "deployment %s/%s has no pod that is available"
	switch {
	case d.Status.AvailableReplicas > 0:
	case len(in.Cilium.unnoted()) == 0:
		out = findings.Skip(away+": a run may have restarted it, and waits for it", d.Namespace, d.Name)
	default:
		out = append(out, findings.Failed(object, away, d.Namespace, d.Name))
	}
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, arg := range slices.Concat(c.Command, c.Args) {
			if in.Cilium.Pool == nil && strings.HasPrefix(strings.TrimLeft(arg, "-"), ciliumipam.PoolKey) {
				out = append(out, findings.Failed(object, "deployment %s/%s is started with %s", d.Namespace, d.Name, arg))
			}
		}
	}
	return out
}

func checkNative(in Input) (out []findings.Result) {
	if in.Cilium == nil || !in.Cilium.Config.Native {
		return findings.Skip("Cilium does not route natively")
	}
	within := in.Cilium.Config.NativeRange
	for _, p := range slices.Concat(in.Inventory.Spec.From, in.Inventory.Spec.To) {
		if within.IsValid() && !nodeipam.Within(within, p) {
			out = append(out, findings.Failed(configObject, "%s is %s, which does not cover %s", ciliumipam.NativeKey, within, p))
		}
	}
	return out
}

func checkRoutes(in Input) []findings.Result {
	if in.Cilium == nil {
		return findings.Skip("pods are not on Cilium")
	}
	var out []findings.Result
	config, announces := in.Cilium.Config, in.Cilium.ConfigMap.Data[ciliumipam.BGPKey] == "true"
	if config.Native && !config.Direct {
		out = append(out, findings.NotKnown(configObject, "routes to ranges of nodes cannot be seen from here (%s is not true)", ciliumipam.DirectKey))
	}
	if announces {
		out = append(out, findings.NotKnown(configObject, "filters of routers that have ranges of nodes by BGP cannot be seen from here (%s is true)",
			ciliumipam.BGPKey))
	}
	if !config.Native && !announces {
		return findings.Skip("Cilium's agents lead packets through tunnels, and announce nothing")
	}
	return out
}

// overlaps are pools beside the one that moves which have addresses of the target.
func (s *CiliumState) overlaps(to netip.Prefix) (out []findings.Result) {
	if s == nil {
		return nil
	}
	for _, other := range s.Others {
		for _, p := range other.Ranges {
			if to.Overlaps(p) {
				out = append(out, findings.Failed("CiliumPodIPPool "+other.Name, "target %s overlaps %s of CiliumPodIPPool %s", to, p, other.Name))
			}
		}
	}
	return out
}

func checkConfigOwner(in Input) []findings.Result {
	if !in.Pooled {
		return findings.Skip(notPooled)
	}
	var owned client.Object = in.Cilium.ConfigMap
	name, field := configObject, []string{"data", ciliumipam.PoolKey}
	if pool := in.Cilium.Pool; pool != nil {
		owned, name, field = pool.Object(), "CiliumPodIPPool "+pool.Name, []string{"spec", "ipv4", "cidrs"}
	}
	by := fieldmanagers.Of(owned, field...)
	release := owned.GetAnnotations()["meta.helm.sh/release-name"]
	switch {
	case release != "":
		return []findings.Result{findings.Failed(name, "%s is of Helm's release %s (written by %s)", name, release, by)}
	case by != fieldmanagers.Unknown && !strings.HasPrefix(by, "kubectl") && !strings.HasPrefix(by, "cilium-operator"): // which makes what is not there
		return []findings.Result{findings.Failed(name, "%s is written by %s", name, by)}
	}
	return nil
}

func checkTolerant(in Input) (out []findings.Result) {
	if in.Cilium == nil {
		return findings.Skip("pods are not on Cilium")
	}
	taint := cordon.Taint(in.Inventory.Spec.Name)
	for i := range in.Inventory.Workloads.DaemonSets {
		ds := &in.Inventory.Workloads.DaemonSets[i]
		spec := &ds.Spec.Template.Spec
		tolerates := slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Effect == "" || t.Effect == taint.Effect) && t.Operator == corev1.TolerationOpExists && (t.Key == "" || t.Key == taint.Key)
		})
		if tolerates && !spec.HostNetwork && podnetwork.Of(ds) == "" {
			out = append(out, findings.Failed("DaemonSet "+ds.Namespace+"/"+ds.Name,
				"pods of daemonset %s/%s stay on nodes whatever their taints", ds.Namespace, ds.Name))
		}
	}
	return out
}

// untriedVersions are those of agents with which pods were not moved.
func (in Input) untriedVersions() (out []findings.Result) {
	if in.Live.Inspection == nil {
		return nil
	}
	for _, p := range in.Live.Inspection.Planes {
		major, minor, known := inventory.Minor(p.Version)
		if p.Plane == inventory.PlaneCilium && (!known || major == 1 && minor < 20) {
			out = append(out, findings.Failed(p.Object, "%s of %s, as %s shows; pods were moved with 1.20 alone",
				cmp.Or(p.Version, "an unknown version"), p.Plane, p.Object))
		}
	}
	return out
}

func checkUntried(in Input) (out []findings.Result) {
	if in.Cilium == nil {
		return findings.Skip("pods are not on Cilium")
	}
	out = in.untriedVersions()
	data := in.Cilium.ConfigMap.Data
	for _, key := range ciliumipam.FeatureKeys() {
		if data[key] == "true" {
			out = append(out, findings.Failed(configObject, "%s is true", key))
		}
	}
	if id := data[ciliumipam.ClusterKey]; id != "" && id != "0" {
		out = append(out, findings.Failed(configObject, "%s is %s: the cluster can be one of a mesh", ciliumipam.ClusterKey, id))
	}
	if pool := in.Cilium.Pool; pool != nil && len(pool.IPv6) > 0 {
		out = append(out, findings.Failed("CiliumPodIPPool "+pool.Name, "pods have addresses of %s as well, which stay as they are", strings.Join(pool.IPv6, ", ")))
	}
	return out
}
