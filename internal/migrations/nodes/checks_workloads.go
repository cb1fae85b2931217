package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/inventory"
)

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3201", Severity: findings.Blocking, Run: checkBudgets,
			Claim: "every PodDisruptionBudget over pods of old nodes allows a disruption",
			Why:   "the drain would wait for it forever",
			Fix:   "let it allow one disruption (maxUnavailable: 1, or more replicas than minAvailable) during the migration",
		},
		{
			Code: "RP3202", Severity: findings.Blocking, Run: checkVolumes,
			Claim: "every volume of old nodes can follow its pod",
			Why:   "a pod starts only where its volume is reachable: not on new nodes, if that is an old node or a zone without new nodes",
			Fix: "copy the data to a volume of the new network and have the pod use that; or, for data that can be lost, delete claim and pod. A " +
				"pod whose data is taken care of may be named in spec.nodes.drain.force",
		},
		{
			Code: "RP3203", Severity: findings.Warning, Run: checkSingles,
			Claim: "every workload keeps serving while it moves",
			Why:   "a workload with a single pod that ends before the next one is ready does not answer in between",
			Fix:   "give it a second pod during the migration; a Deployment with a single pod and maxSurge above 0 starts the new one first",
		},
		{
			Code: "RP3204", Severity: findings.Warning, Run: checkBare,
			Claim: "every pod of old nodes has an owner that replaces it",
			Why:   "a pod without an owner is not started elsewhere; its node is not terminated before the pod has ended",
			Fix:   "move it yourself, or set spec.nodes.drain.barePods: Evict, which deletes such pods for good",
		},
		{
			Code: "RP3205", Severity: findings.Warning, Run: checkLocalData,
			Claim: "pods of old nodes keep no data on their node",
			Why:   "the data of emptyDir and hostPath volumes stays behind, and is lost with the machine",
			Fix:   "save what matters; do nothing for workloads that fill the volume again by themselves, as caches do",
		},
		{
			Code: "RP3206", Severity: findings.Warning, Run: checkUnready,
			Claim: "every workload of old nodes has all its pods now",
			Why:   "none of its pods is evicted before all are ready, so its nodes do not become empty",
			Fix:   "repair it first, or scale it to zero",
		},
		{
			Code: "RP3207", Severity: findings.Warning, Run: checkSpread,
			Claim: "every pod that must be spread finds nodes that take it",
			Why: "topology spread counts nodes with taints, so with whenUnsatisfiable: DoNotSchedule a pod may stay pending until old nodes are " +
				"gone; its workload has one pod less until then",
			Fix: "set nodeTaintsPolicy: Honor in its topologySpreadConstraints, or give it more pods",
		},
		{
			Code: "RP3208", Severity: findings.Warning, Run: checkOpen,
			Claim: "the place of new nodes is known",
			Why: "a volume of one zone needs a new node there, and a policy that names nodes by address has to know them; apply looks again when " +
				"the new nodes are there, before the first old one is drained, and stops if they are elsewhere",
			Fix: "have new nodes in the zones of the volumes; say so by labels such as topology.kubernetes.io/zone in spec.nodes.new.selector, and " +
				"name their network in spec.nodes.new.cidrs",
		},
		spare.Check("RP3217", root+".prepare", func(in Input) *spare.Found { return in.Inventory.Spares }),
	}
}

func checkBudgets(in Input) []findings.Result {
	if in.Inventory.Spec.waits() { // nothing is evicted
		return findings.Skip("nothing is evicted")
	}
	var out []findings.Result
	for i := range in.Inventory.Workloads.Budgets {
		b := &in.Inventory.Workloads.Budgets[i]
		name := b.Namespace + "/" + b.Name
		if rule := inventory.NeverAllows(b); rule != "" && in.Inventory.covers(name) {
			out = append(out,
				findings.Failed("PodDisruptionBudget "+name, "poddisruptionbudget %s never allows a disruption: %s", name, rule))
		}
	}
	return out
}

func checkVolumes(in Input) []findings.Result {
	var out []findings.Result
	for _, v := range in.Inventory.stuck() {
		if !v.open {
			out = append(out, findings.Failed("Pod "+v.pod.Namespace+"/"+v.pod.Name, "pod %s/%s: %s", v.pod.Namespace, v.pod.Name, v.why))
		}
	}
	return out
}

// checkOpen names what apply looks at when the new nodes are there.
func checkOpen(in Input) []findings.Result {
	var out []findings.Result
	s := in.Inventory
	for _, v := range s.stuck() {
		if v.open {
			out = append(out, findings.NotKnown("Pod "+v.pod.Namespace+"/"+v.pod.Name, "pod %s/%s: %s", v.pod.Namespace, v.pod.Name, v.why))
		}
	}
	if len(s.Spec.New.CIDRs) == 0 && len(s.NewNodes()) == 0 && len(s.Policies)+len(s.CalicoPolicies) > 0 {
		out = append(out, findings.NotKnown("", "which addresses new nodes will have, and whether policies let them in, is not known"))
	}
	return out
}

func checkSingles(in Input) []findings.Result {
	if in.Inventory.Spec.waits() { // nothing is evicted
		return findings.Skip("nothing is evicted")
	}
	var out []findings.Result
	s := in.Inventory
	for i := range s.Workloads.StatefulSets {
		set := &s.Workloads.StatefulSets[i]
		key := client.ObjectKeyFromObject(set)
		if ptr.Deref(set.Spec.Replicas, 1) == 1 && len(s.onOldNodes()[key]) > 0 {
			out = append(out, findings.Failed("StatefulSet "+key.String(),
				"statefulset %s has a single pod, which ends before the next one starts", key))
		}
	}
	for key := range s.onOldNodes() {
		d := s.deployment(key)
		if d == nil || ptr.Deref(d.Spec.Replicas, 1) != 1 {
			continue
		}
		u := d.Spec.Strategy.RollingUpdate
		switch {
		case d.Spec.Strategy.Type == "Recreate":
			out = append(out, findings.Failed("Deployment "+key.String(), "deployment %s has a single pod and the strategy Recreate", key))
		case u != nil && u.MaxSurge != nil && u.MaxSurge.String() == "0":
			out = append(out, findings.Failed("Deployment "+key.String(), "deployment %s has a single pod and maxSurge 0", key))
		case d.Spec.Paused:
			out = append(out, findings.Failed("Deployment "+key.String(), "deployment %s has a single pod and is paused", key))
		}
	}
	sortResults(out)
	return out
}

func checkBare(in Input) []findings.Result {
	var out []findings.Result
	for _, l := range in.Inventory.OldNodes() {
		for _, p := range l.Pods {
			if controllerOf(p) == "" && !slices.Contains(in.Inventory.Spec.Force, client.ObjectKeyFromObject(p)) {
				out = append(out,
					findings.Failed("Pod "+p.Namespace+"/"+p.Name, "pod %s/%s on node %s has no owner", p.Namespace, p.Name, l.Name))
			}
		}
	}
	return out
}

func checkLocalData(in Input) []findings.Result {
	volumes := map[string][]string{}
	for _, l := range in.Inventory.OldNodes() {
		for _, p := range l.Pods {
			who := "Pod " + p.Namespace + "/" + p.Name
			if owner := in.Inventory.workloadOf(p); owner.Name != "" {
				who = "Workload " + owner.String()
			}
			for i := range p.Spec.Volumes {
				v := &p.Spec.Volumes[i]
				if (v.EmptyDir != nil || v.HostPath != nil) && !slices.Contains(volumes[who], v.Name) {
					volumes[who] = append(volumes[who], v.Name)
				}
			}
		}
	}
	var out []findings.Result
	for _, who := range slices.Sorted(maps.Keys(volumes)) {
		out = append(out,
			findings.Failed(who, "%s has volumes on its node: %s", strings.ToLower(who[:1])+who[1:], strings.Join(volumes[who], ", ")))
	}
	return out
}

func checkUnready(in Input) []findings.Result {
	if in.Inventory.Spec.waits() { // nothing is evicted
		return findings.Skip("nothing is evicted")
	}
	var out []findings.Result
	s := in.Inventory
	for key := range s.onOldNodes() {
		if d := s.deployment(key); d != nil && d.Status.AvailableReplicas < ptr.Deref(d.Spec.Replicas, 1) {
			out = append(out, findings.Failed("Deployment "+key.String(), "deployment %s has %d of %d pods available",
				key, d.Status.AvailableReplicas, ptr.Deref(d.Spec.Replicas, 1)))
		}
	}
	for i := range s.Workloads.StatefulSets {
		set := &s.Workloads.StatefulSets[i]
		key := client.ObjectKeyFromObject(set)
		if want := ptr.Deref(set.Spec.Replicas, 1); set.Status.AvailableReplicas < want && len(s.onOldNodes()[key]) > 0 {
			out = append(out, findings.Failed("StatefulSet "+key.String(), "statefulset %s has %d of %d pods available",
				key, set.Status.AvailableReplicas, want))
		}
	}
	sortResults(out)
	return out
}

func checkSpread(in Input) []findings.Result {
	var out []findings.Result
	for key, pods := range in.Inventory.onOldNodes() {
		if slices.ContainsFunc(pods[0].Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.WhenUnsatisfiable == corev1.DoNotSchedule &&
				ptr.Deref(c.NodeTaintsPolicy, corev1.NodeInclusionPolicyIgnore) != corev1.NodeInclusionPolicyHonor
		}) {
			out = append(out, findings.Failed("Workload "+key.String(), "workload %s has to be spread over old nodes as well", key))
		}
	}
	sortResults(out)
	return out
}

func sortResults(all []findings.Result) {
	slices.SortFunc(all, func(a, b findings.Result) int { return cmp.Compare(a.Object, b.Object) })
}

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
			Why:   "its pods ended as they were, and clients have lost requests until the node counted as not ready",
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
