package nodes

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
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
		return nil
	}
	var out []findings.Result
	for i := range in.Inventory.Workloads.Budgets {
		b := &in.Inventory.Workloads.Budgets[i]
		name := b.Namespace + "/" + b.Name
		if rule := cluster.NeverAllows(b); rule != "" && in.Inventory.covers(name) {
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
		return nil
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
		return nil
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
