package noderanges

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// Input is what the checks look at.
type Input struct {
	podmove.Input
	Ranges  []NodeRange
	Kubeadm *kubeadmgate.KubeadmState
	Cilium  *CiliumState
	// Pooled says that Cilium's operator gives nodes their ranges, Holds that nodes keep their own
	// address of the former one while its agents restart.
	Pooled, Holds bool
}

func (s *Inventory) Check(facts podmove.Facts) findings.Findings {
	in := Input{Ranges: s.NodeRanges, Kubeadm: s.Kubeadm, Cilium: s.Cilium, Pooled: s.pooled(), Holds: s.holdsAddress(), Input: podmove.Input{
		Facts: facts, Inventory: &s.Inventory, Fates: s.Fates(s.Leaving(engine.Forward, time.Time{})), ByNode: !s.pooled(),
	}}
	all := podmove.Ordered(findings.Of(func(in Input) podmove.Input { return in.Input }, podmove.Checks()), Checks())
	return findings.Run(all, in)
}

// Checks are those that only clusters need whose nodes have ranges of their own.
func Checks() []findings.Check[Input] {
	return findings.Group("Nodes", slices.Concat(kubeadmChecks(), ciliumChecks(), []findings.Check[Input]{
		{
			Code: "RP2501", Severity: findings.Blocking, Run: checkFinalizers,
			Claim: "deleting a Node affects the Node alone (no finalizers)",
			Why: "a Node's range cannot be changed, so its Node is deleted and recreated; a finalizer says that something else, such as " +
				"Karpenter, acts on the deletion, and may end the machine",
			Fix: "move such nodes by replacing them: new ones get ranges of the target once controller managers give those",
		},
		{
			Code: "RP2502", Severity: findings.Warning, Run: checkManaged,
			Claim: "machines stay while their Node is recreated",
			Why:   "health checks of Cluster API replace a machine whose Node they do not find",
			Fix:   "pause them for the time of the migration: kubectl annotate machinehealthcheck --all cluster.x-k8s.io/paused=true",
		},
		{
			Code: "RP2503", Severity: findings.Blocking, Run: checkRangesApart,
			Claim: "old ranges and targets are apart",
			Why:   "nodes that have moved, and those that have not, must be routed side by side",
			Fix:   "choose a target outside of what Nodes have now",
		},
		{
			Code: "RP2504", Severity: findings.Blocking, Run: checkBare,
			Claim: "every pod that leaves its node has an owner that replaces it",
			Why:   "a node that has another range gives its pods' old addresses no way in or out on most pod networks, so all have to leave it",
			Fix:   "remove them yourself, give them an owner, or set spec.podCIDR.roll.barePods: Evict, which ends them for good",
		},
		{
			Code: "RP2507", Severity: findings.Blocking, Run: checkMaker,
			Claim: "the cluster's installer lets Nodes have other ranges",
			Why: "ranges of Nodes change only if no controller manager gives them meanwhile, if the pod network reads them again, and if machines " +
				"are routed by them; some installers and clouds decide this themselves",
			Fix: "move to new nodes with another range where the platform has that (docs/platforms), by spec.nodes; else make another cluster, and mirror " +
				"to it (spec.mirror)",
		},
		{
			Code: "RP2505", Severity: findings.Warning, Run: checkClaims,
			Claim: "annotations about the former ranges of Nodes agree with each other",
			Why: "a kubelet may write annotations on its own Node, and with " + v1alpha1.AnnotationPodCIDRs + " could ask for the range of another; " +
				"such a Node is given a free range on the way back",
			Fix: "look who wrote the annotation, and whether the node is still yours alone; correct or remove it",
		},
	})...)
}

func checkClaims(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Ranges {
		if r := &in.Ranges[i]; r.Doubted {
			out = append(
				out,
				findings.Failed("Node "+r.Node.Name, "node %s says that it had %s, which is not of the old ranges or another's",
					r.Node.Name, strings.Join(r.claim, ", ")),
			)
		}
	}
	return out
}

func checkFinalizers(in Input) []findings.Result {
	if in.Pooled {
		return findings.Skip("Nodes stay: Cilium's operator gives the ranges, in CiliumNodes")
	}
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		if n := &in.Inventory.Nodes[i]; len(n.Finalizers) > 0 {
			out = append(out, findings.Failed("Node "+n.Name, "node %s has finalizers: %s", n.Name, strings.Join(n.Finalizers, ", ")))
		}
	}
	return out
}

func checkManaged(in Input) []findings.Result {
	if in.Pooled {
		return findings.Skip("Nodes stay: Cilium's operator gives the ranges, in CiliumNodes")
	}
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		if n := &in.Inventory.Nodes[i]; inventory.MachineOf(n) != "" {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is that of a machine of Cluster API, %s", n.Name,
				inventory.MachineOf(n)))
		}
	}
	return out
}

func checkRangesApart(in Input) []findings.Result {
	var out []findings.Result
	for _, to := range in.Inventory.Spec.To {
		for _, from := range in.Inventory.Spec.From {
			if to.Overlaps(from) {
				out = append(out, findings.Failed("", "target %s overlaps %s, which nodes have their ranges of", to, from))
			}
		}
		for i := range in.Ranges {
			h := &in.Ranges[i]
			if p := nodeipam.Range(h.Has); p.IsValid() && to.Overlaps(p) && !nodeipam.Within(to, p) {
				out = append(out, findings.Failed("Node "+h.Node.Name, "target %s lies in the range %s of node %s", to, p, h.Node.Name))
			}
		}
		out = append(out, in.Cilium.overlaps(to)...)
	}
	return out
}

// checkBare finds what a drain would wait for in vain. Pods of Jobs end by themselves.
func checkBare(in Input) []findings.Result {
	var out []findings.Result
	if in.Inventory.Spec.Roll.BarePods == v1alpha1.BarePodsEvict {
		return findings.Skip("spec.podCIDR.roll.barePods is Evict")
	}
	for _, pod := range in.Inventory.PodsIn(in.Inventory.Spec.From) {
		if metav1.GetControllerOf(pod) == nil {
			name := pod.Namespace + "/" + pod.Name
			out = append(out,
				findings.Failed("Pod "+name, "pod %s on node %s has no owner that would start it elsewhere", name, pod.Spec.NodeName))
		}
	}
	return out
}
