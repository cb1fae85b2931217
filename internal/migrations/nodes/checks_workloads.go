package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3201", Severity: findings.Blocking, Run: checkBudgets,
			Claim: "no PodDisruptionBudget over pods of old nodes forbids every disruption",
			Why:   "the drain would wait for it forever",
			Fix:   "let it allow one disruption (maxUnavailable: 1, or more replicas than minAvailable) during the migration",
		},
		{
			Code:     "RP3202",
			Severity: findings.Blocking,
			Run:      checkVolumes,
			Claim:    "no volume keeps its pod on old nodes",
			Why:      "a pod starts only where its volume is reachable: not on new nodes, if that is an old node or a zone without new nodes",
			Fix: "copy the data to a volume of the new network and have the pod use that; or, for data that can be lost, delete claim and pod. A " +
				"pod whose data is taken care of may be named in spec.nodes.drain.force",
		},
		{
			Code:     "RP3203",
			Severity: findings.Warning,
			Run:      checkSingles,
			Claim:    "no workload is interrupted while it moves",
			Why:      "a workload with a single pod that ends before the next one is ready does not answer in between",
			Fix:      "give it a second pod during the migration; a Deployment with a single pod and maxSurge above 0 starts the new one first",
		},
		{
			Code: "RP3204", Severity: findings.Warning, Run: checkBare,
			Claim: "every pod of old nodes has an owner that replaces it",
			Why:   "a pod without an owner is not started elsewhere; its node is not terminated before the pod has ended",
			Fix:   "move it yourself, or set spec.nodes.drain.barePods: Evict, which deletes such pods for good",
		},
		{
			Code: "RP3205", Severity: findings.Warning, Run: checkLocalData,
			Claim: "no pod of old nodes keeps data on its node",
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
			Code:     "RP3207",
			Severity: findings.Warning,
			Run:      checkSpread,
			Claim:    "no pod has to be spread over nodes that take no pods",
			Why: "topology spread counts nodes with taints, so with whenUnsatisfiable: DoNotSchedule a pod may stay pending until old nodes are " +
				"gone; its workload has one pod less until then",
			Fix: "set nodeTaintsPolicy: Honor in its topologySpreadConstraints, or give it more pods",
		},
	}
}

func checkBudgets(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Workloads.Budgets {
		b := &in.Survey.Workloads.Budgets[i]
		name := b.Namespace + "/" + b.Name
		if rule := cluster.NeverAllows(b); rule != "" && in.Survey.covers(name) {
			out = append(
				out,
				findings.Failed("PodDisruptionBudget "+name, "poddisruptionbudget %s never allows a disruption: %s", name, rule),
			)
		}
	}
	return out
}

// checkVolumes asks of each volume where it can be. One whose pod is forced is its owner's concern.
func checkVolumes(in Input) []findings.Result {
	var out []findings.Result
	s := in.Survey
	for _, l := range s.OldNodes() {
		for _, p := range l.Pods {
			if slices.Contains(s.Spec.Force, client.ObjectKeyFromObject(p)) {
				continue
			}
			for i := range p.Spec.Volumes {
				if problem := s.bound(p, &p.Spec.Volumes[i]); problem != "" {
					out = append(out, findings.Failed("Pod "+p.Namespace+"/"+p.Name, "pod %s/%s: %s", p.Namespace, p.Name, problem))
				}
			}
		}
	}
	return out
}

// bound says why a volume cannot be on any new node; nothing, if it can, or if there is none yet to tell by.
func (s *Survey) bound(p *corev1.Pod, v *corev1.Volume) string {
	if v.PersistentVolumeClaim == nil {
		return ""
	}
	claim := s.Claims[types.NamespacedName{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}]
	if claim == nil {
		return ""
	}
	volume := s.Volumes[claim.Spec.VolumeName]
	switch {
	case volume == nil:
		return ""
	case volume.Spec.Local != nil || volume.Spec.HostPath != nil:
		return fmt.Sprintf("volume %s of claim %s is on the node itself", volume.Name, claim.Name)
	case volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil || len(s.NewNodes()) == 0:
		return ""
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Sprintf("volume %s of claim %s: %v", volume.Name, claim.Name, err)
	}
	if slices.ContainsFunc(s.NewNodes(), selector.Match) {
		return ""
	}
	return fmt.Sprintf("volume %s of claim %s can be on no new node", volume.Name, claim.Name)
}

func checkSingles(in Input) []findings.Result {
	var out []findings.Result
	s := in.Survey
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
	for _, l := range in.Survey.OldNodes() {
		for _, p := range l.Pods {
			if controllerOf(p) == "" && !slices.Contains(in.Survey.Spec.Force, client.ObjectKeyFromObject(p)) {
				out = append(
					out,
					findings.Failed("Pod "+p.Namespace+"/"+p.Name, "pod %s/%s on node %s has no owner", p.Namespace, p.Name, l.Name),
				)
			}
		}
	}
	return out
}

// checkLocalData names each workload once.
func checkLocalData(in Input) []findings.Result {
	volumes := map[string][]string{}
	for _, l := range in.Survey.OldNodes() {
		for _, p := range l.Pods {
			who := "Pod " + p.Namespace + "/" + p.Name
			if owner := in.Survey.workloadOf(p); owner.Name != "" {
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
		out = append(
			out,
			findings.Failed(who, "%s has volumes on its node: %s", strings.ToLower(who[:1])+who[1:], strings.Join(volumes[who], ", ")),
		)
	}
	return out
}

// checkUnready asks of every workload of old nodes whether all its pods are available.
func checkUnready(in Input) []findings.Result {
	var out []findings.Result
	s := in.Survey
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

// checkSpread names each workload once.
func checkSpread(in Input) []findings.Result {
	var out []findings.Result
	for key, pods := range in.Survey.onOldNodes() {
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
