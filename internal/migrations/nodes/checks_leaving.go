package nodes

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
)

func leavingChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3209", Severity: findings.Warning, Run: checkStuck,
			Claim: "pods of DaemonSets can leave their Services before their node ends",
			Why: "a DaemonSet that tolerates every taint makes another pod at once if the labels change that it " +
				"selects by. A Service or a NetworkPolicy that selects by the same labels leads to the pod until its " +
				"node counts as not ready, some 40 s after it has ended",
			Fix: "give pods and Service another label (the DaemonSet's template, and once it is rolled out the Service's selector), or have the " +
				"DaemonSet tolerate only the taints that it has to",
		},
		{
			Code: "RP3212", Severity: findings.Warning, Run: checkEarly,
			Claim: "every old node was empty before it was gone",
			Why:   "what was on it ended as it was, and clients have lost requests until the node counted as not ready",
			Fix:   "find out who ended it; the migration goes on with the others, and its pods run elsewhere",
		},
		{
			Code: "RP3213", Severity: findings.Warning, Run: checkHostPorts,
			Claim: "clients of host ports on old nodes have another way",
			Why:   "clients outside that call a port of a node by its address lose what they send when the machine ends",
			Fix: "name what leads to the nodes in spec.nodes.records, or take old nodes out of DNS and load balancers in a hook before the phase " +
				"drain; a Service of type LoadBalancer is taken care of",
		},
	}
}

func checkStuck(in Input) []findings.Result {
	s, seen := in.Inventory, map[string]bool{}
	var out []findings.Result
	for _, p := range s.onOldUntilTheEnd() {
		services := leaving.Selecting(slices.DeleteFunc(slices.Clone(s.Selecting), func(svc corev1.Service) bool {
			return svc.Namespace != p.Namespace
		}), p.Labels)
		same := append(kept(p, s.Workloads.DaemonSets, s.Spec.Name), leaving.Policies(s.Policies, p.Namespace)...)
		if _, ok := leaving.Choose(p.Labels, services, same); ok {
			continue
		}
		var names []string
		for i := range services {
			names = append(names, services[i].Name)
		}
		owner := p.Namespace + "/" + metav1.GetControllerOfNoCopy(p).Name
		text := fmt.Sprintf("pods of daemonset %s cannot leave service %s", owner, strings.Join(names, ", "))
		if !seen[text] {
			seen[text] = true
			out = append(out, findings.Failed("DaemonSet "+owner, "%s", text))
		}
	}
	sortResults(out)
	return out
}

// onOldUntilTheEnd are the pods that end with old nodes which are still to end.
func (s *Inventory) onOldUntilTheEnd() []*corev1.Pod {
	on := map[string]bool{}
	for _, l := range s.OldNodes() {
		on[l.Name] = l.Reversible()
	}
	var all []*corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; on[p.Spec.NodeName] && stays(p) {
			all = append(all, p)
		}
	}
	return all
}

// serveFromEnding reports whether a Service leads to a pod that ends with an old node.
func (s *Inventory) serveFromEnding() bool {
	return slices.ContainsFunc(s.onOldUntilTheEnd(), func(p *corev1.Pod) bool {
		return slices.ContainsFunc(s.Selecting, func(svc corev1.Service) bool { return selects(&svc, p) })
	})
}

func checkEarly(in Input) []findings.Result {
	var out []findings.Result
	for _, l := range in.Inventory.OldNodes() {
		if l.Node == nil && !l.Ended {
			out = append(out, findings.Failed("Node "+l.Name, "node %s is gone, and replumb has not ended it", l.Name))
		}
	}
	return out
}

func checkHostPorts(in Input) []findings.Result {
	if len(in.Inventory.Spec.Records) > 0 {
		return nil
	}
	ports := map[string][]string{}
	for _, p := range in.Inventory.onOldUntilTheEnd() {
		owner := p.Namespace + "/" + metav1.GetControllerOfNoCopy(p).Name
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				text := fmt.Sprint(port.HostPort)
				if port.HostPort != 0 && p.Namespace != metav1.NamespaceSystem && !slices.Contains(ports[owner], text) {
					ports[owner] = append(ports[owner], text)
				}
			}
		}
	}
	var out []findings.Result
	for owner, all := range ports {
		out = append(
			out,
			findings.Failed("DaemonSet "+owner, "daemonset %s has the host port %s on old nodes, and spec.nodes.records names nothing",
				owner, strings.Join(all, ", ")),
		)
	}
	sortResults(out)
	return out
}
