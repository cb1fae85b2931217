package podcidr

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// checks are those that have something to say of this cluster: pools, or Nodes that carry their ranges.
func (s *Survey) checks() []findings.Check[Input] {
	of := func(group string) bool { return group == "Nodes" }
	if s.OnNodes() {
		of = func(group string) bool { return group == "Pools" }
	}
	// What is about Calico, and pods that no rollout restarts, are no concern of nodes, which are emptied; nor is that
	// controller managers give ranges, which a gate is about.
	pools := []string{"RP2002", "RP2004", "RP2103", "RP2104", "RP2304", "RP2403"}
	return slices.DeleteFunc(Checks(), func(c findings.Check[Input]) bool {
		return of(c.Group) || s.OnNodes() && slices.Contains(pools, c.Code)
	})
}

func nodeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2501", Severity: findings.Blocking, Run: checkFinalizers,
			Claim: "nothing is bound to the deletion of a Node",
			Why: "a Node's range cannot be changed, so its Node is deleted and made anew; a finalizer says that something else, such as " +
				"Karpenter, acts on the deletion, and may end the machine",
			Fix: "move such nodes by replacing them: new ones get ranges of the target once controller managers give those",
		},
		{
			Code: "RP2502", Severity: findings.Warning, Run: checkManaged,
			Claim: "nothing replaces a machine whose Node is gone for a moment",
			Why:   "health checks of Cluster API replace a machine whose Node they do not find",
			Fix:   "pause them for the time of the migration: kubectl annotate machinehealthcheck --all cluster.x-k8s.io/paused=true",
		},
		{
			Code: "RP2503", Severity: findings.Blocking, Run: checkRangesApart,
			Claim: "old ranges and target have no address in common",
			Why:   "nodes that have moved, and those that have not, must be routed side by side",
			Fix:   "choose a target outside of what Nodes have now",
		},
		{
			Code:     "RP2504",
			Severity: findings.Blocking,
			Run:      checkBare,
			Claim:    "every pod that has to leave its node is replaced by something",
			Why:      "a node that has another range gives its pods' old addresses no way in or out on most pod networks, so all have to leave it",
			Fix:      "remove them yourself, give them an owner, or set spec.podCIDR.roll.barePods: Evict, which ends them for good",
		},
	}
}

func checkFinalizers(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		if n := &in.Survey.Nodes[i]; len(n.Finalizers) > 0 {
			out = append(out, findings.Failed("Node "+n.Name, "node %s has finalizers: %s", n.Name, strings.Join(n.Finalizers, ", ")))
		}
	}
	return out
}

func checkManaged(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		if n := &in.Survey.Nodes[i]; n.Annotations["cluster.x-k8s.io/machine"] != "" {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is that of a machine of Cluster API, %s", n.Name,
				n.Annotations["cluster.x-k8s.io/machine"]))
		}
	}
	return out
}

func checkRangesApart(in Input) []findings.Result {
	var out []findings.Result
	for _, to := range in.Survey.Spec.To {
		for _, from := range in.Survey.Spec.From {
			if to.Overlaps(from) {
				out = append(out, findings.Failed("", "target %s overlaps %s, which nodes have their ranges of", to, from))
			}
		}
		for i := range in.Survey.Homes {
			h := &in.Survey.Homes[i]
			if p := nodeipam.Range(h.Has); p.IsValid() && to.Overlaps(p) && !nodeipam.Within(to, p) {
				out = append(out, findings.Failed("Node "+h.Node.Name, "target %s lies in the range %s of node %s", to, p, h.Node.Name))
			}
		}
	}
	return out
}

// checkBare finds what a drain would wait for in vain. Pods of Jobs end by themselves.
func checkBare(in Input) []findings.Result {
	var out []findings.Result
	if in.Survey.Spec.Roll.BarePods == "Evict" {
		return nil
	}
	for _, pod := range in.Survey.PodsIn(in.Survey.Spec.From) {
		if metav1.GetControllerOf(pod) == nil {
			name := pod.Namespace + "/" + pod.Name
			out = append(
				out,
				findings.Failed("Pod "+name, "pod %s on node %s has no owner that would start it elsewhere", name, pod.Spec.NodeName),
			)
		}
	}
	return out
}
