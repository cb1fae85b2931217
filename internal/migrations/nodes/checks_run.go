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

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func checkRights(in Input) []findings.Result {
	var out []findings.Result
	for _, a := range in.Access {
		if !a.Allowed {
			out = append(out, findings.Failed("", "the user may not %s", a.Right))
		}
	}
	return out
}

func checkScalers(in Input) []findings.Result {
	var out []findings.Result
	for _, s := range in.Survey.Scalers {
		out = append(out, findings.Failed("Deployment "+s.String(), "deployment %s makes and ends nodes", s))
	}
	return out
}

func checkOld(in Input) []findings.Result {
	if len(in.Survey.Leaving()) == 0 {
		return []findings.Result{findings.Failed("", "spec.nodes.old chooses no worker")}
	}
	return nil
}

func checkBoth(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		if n := &in.Survey.Nodes[i]; in.Survey.Spec.Old.Has(n) && in.Survey.Spec.New.Has(n) {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is in spec.nodes.old and in spec.nodes.new", n.Name))
		}
	}
	return out
}

func checkAstray(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		n := &in.Survey.Nodes[i]
		for _, set := range []Set{in.Survey.Spec.Old, in.Survey.Spec.New} {
			if problem := set.Astray(n); problem != "" && set.Has(n) {
				out = append(out, findings.Failed("Node "+n.Name, "%s", problem))
			}
		}
	}
	return out
}

func checkOldReady(in Input) []findings.Result {
	var out []findings.Result
	for _, l := range in.Survey.Leaving() {
		if l.Node != nil && !l.Ended && !cluster.NodeReady(l.Node) {
			out = append(out, findings.Failed("Node "+l.Name, "node %s is not ready: %s", l.Name, whyNot(l.Node)))
		}
	}
	return out
}

func checkCordoned(in Input) []findings.Result {
	var out []findings.Result
	nodes := in.Survey.Arrived()
	for _, l := range in.Survey.Leaving() {
		if l.Node != nil {
			nodes = append(nodes, l.Node)
		}
	}
	for _, n := range nodes {
		if n.Spec.Unschedulable {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is unschedulable", n.Name))
		}
	}
	return out
}

// checkRoom looks once all new nodes are there. Until then apply does, when they have joined.
func checkRoom(in Input) []findings.Result {
	if in.Survey.Spec.Join.Room != v1alpha1.RoomRequired || len(in.Survey.Ready()) < in.Survey.Wanted() {
		return nil
	}
	var out []findings.Result
	for _, m := range in.Survey.Room() {
		name := m.Pod.Namespace + "/" + m.Pod.Name
		out = append(out, findings.Failed("Pod "+name, "there is no place for pod %s: %s", name, m.Reasons))
	}
	return out
}

func checkBudgets(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Workloads.Budgets {
		b := &in.Survey.Workloads.Budgets[i]
		name := b.Namespace + "/" + b.Name
		if rule := cluster.NeverAllows(b); rule != "" && in.Survey.guards(name) {
			out = append(out, findings.Failed("PodDisruptionBudget "+name, "poddisruptionbudget %s never lets a pod go: %s", name, rule))
		}
	}
	return out
}

// checkVolumes asks of each volume where it can be. One whose pod is forced away is its owner's concern.
func checkVolumes(in Input) []findings.Result {
	var out []findings.Result
	s := in.Survey
	for _, l := range s.Leaving() {
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
		return fmt.Sprintf("volume %s of claim %s lies on its node", volume.Name, claim.Name)
	case volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil || len(s.Arrived()) == 0:
		return ""
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Sprintf("volume %s of claim %s: %v", volume.Name, claim.Name, err)
	}
	if slices.ContainsFunc(s.Arrived(), selector.Match) {
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
		if ptr.Deref(set.Spec.Replicas, 1) == 1 && len(s.ofLeavers()[key]) > 0 {
			out = append(
				out,
				findings.Failed("StatefulSet "+key.String(), "statefulset %s has a single pod, which ends before the next one starts", key),
			)
		}
	}
	for key := range s.ofLeavers() {
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
	for _, l := range in.Survey.Leaving() {
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
	for _, l := range in.Survey.Leaving() {
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

// checkUnready asks of every workload that leaves whether all its pods are available.
func checkUnready(in Input) []findings.Result {
	var out []findings.Result
	s := in.Survey
	for key := range s.ofLeavers() {
		if d := s.deployment(key); d != nil && d.Status.AvailableReplicas < ptr.Deref(d.Spec.Replicas, 1) {
			out = append(out, findings.Failed("Deployment "+key.String(), "deployment %s has %d of %d pods available",
				key, d.Status.AvailableReplicas, ptr.Deref(d.Spec.Replicas, 1)))
		}
	}
	for i := range s.Workloads.StatefulSets {
		set := &s.Workloads.StatefulSets[i]
		key := client.ObjectKeyFromObject(set)
		if want := ptr.Deref(set.Spec.Replicas, 1); set.Status.AvailableReplicas < want && len(s.ofLeavers()[key]) > 0 {
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
	for key, pods := range in.Survey.ofLeavers() {
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

func checkSources(in Input) []findings.Result {
	var out []findings.Result
	for _, svc := range in.Survey.Ingress() {
		if local(svc) {
			name := client.ObjectKeyFromObject(svc).String()
			out = append(
				out,
				findings.Failed("Service "+name, "service %s has externalTrafficPolicy Local and becomes Cluster for a while", name),
			)
		}
	}
	return out
}

func checkRecords(in Input) []findings.Result {
	var out []findings.Result
	for _, name := range slices.Sorted(maps.Keys(in.RecordProblems)) {
		out = append(out, findings.Failed("Record "+name, "%v", in.RecordProblems[name]))
	}
	return out
}

// checkEtcd lets those be who are half way when a run is taken up again.
func checkEtcd(in Input) []findings.Result {
	switch {
	case in.Survey.Spec.ControlPlane == nil:
		return nil
	case in.EtcdProblem != nil:
		return []findings.Result{findings.Failed("", "%v", in.EtcdProblem)}
	}
	var half []string
	for _, c := range in.Survey.Chiefs() {
		if c.Ended {
			half = append(half, c.Name)
		}
		if c.Successor != nil {
			half = append(half, c.Successor.Name, c.Successor.PeerURL)
		}
	}
	if problem := in.Survey.Etcd.Complaint(half...); problem != "" {
		return []findings.Result{findings.Failed("", "etcd: %s", problem)}
	}
	if len(in.Survey.Chiefs()) == 0 {
		return []findings.Result{findings.Failed("", "no member of etcd has a peer URL in %v", in.Survey.Spec.Old.CIDRs)}
	}
	return nil
}

func checkOdd(in Input) []findings.Result {
	if in.Survey.Etcd == nil || in.Survey.voters() >= 3 {
		return nil
	}
	return []findings.Result{findings.Failed("", "etcd has %d members", in.Survey.voters())}
}
