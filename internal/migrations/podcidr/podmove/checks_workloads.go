package podmove

import (
	"slices"
	"strings"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

func checkBudgets(in Input) []findings.Result {
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "the cluster was not looked through")}
	}
	var out []findings.Result
	for _, b := range in.Live.Inspection.Stuck {
		if !in.Inventory.guards(b.Name) {
			continue
		}
		out = append(out, findings.Failed("PodDisruptionBudget "+b.Name, "poddisruptionbudget %s never lets a pod go: %s", b.Name, b.Rule))
	}
	return out
}

func checkSingles(in Input) []findings.Result {
	var out []findings.Result
	for _, w := range in.Fates.Restarts {
		scaled := w.Kind == rollout.KindDeployment && in.Inventory.Spares.Has(client.ObjectKey{Namespace: w.Namespace, Name: w.Name})
		if gap := in.Inventory.Workloads.Gap(&w); gap != "" && (!scaled || w.AllAtOnce) {
			out = append(out, findings.Failed(w.String(), "%s %s", w, gap))
		}
	}
	return out
}

func checkUnready(in Input) []findings.Result {
	var out []findings.Result
	short := func(kind string, o client.Object, have, want int32) {
		restarted := slices.ContainsFunc(in.Fates.Restarts, func(w rollout.Workload) bool { return w.UID == o.GetUID() })
		if restarted && have < want {
			out = append(out, findings.Failed(Object(kind, o), "%s %s/%s has %d of %d pods available",
				strings.ToLower(kind), o.GetNamespace(), o.GetName(), have, want))
		}
	}
	w := in.Inventory.Workloads
	for i := range w.Deployments {
		short(rollout.KindDeployment, &w.Deployments[i], w.Deployments[i].Status.AvailableReplicas,
			ptr.Deref(w.Deployments[i].Spec.Replicas, 1))
	}
	for i := range w.StatefulSets {
		short(rollout.KindStatefulSet, &w.StatefulSets[i],
			w.StatefulSets[i].Status.AvailableReplicas,
			ptr.Deref(w.StatefulSets[i].Spec.Replicas, 1))
	}
	for i := range w.DaemonSets {
		short(rollout.KindDaemonSet, &w.DaemonSets[i], w.DaemonSets[i].Status.NumberAvailable,
			w.DaemonSets[i].Status.DesiredNumberScheduled)
	}
	return out
}

func checkLocalData(in Input) []findings.Result {
	volumes := map[string][]string{}
	for i := range in.Inventory.Workloads.Pods {
		pod := &in.Inventory.Workloads.Pods[i]
		for n := range pod.Spec.Volumes {
			volumes[pod.Namespace+"/"+pod.Name] = append(volumes[pod.Namespace+"/"+pod.Name], pod.Spec.Volumes[n].Name)
		}
	}
	var out []findings.Result
	for _, w := range in.Fates.Restarts {
		for _, pod := range w.Stale {
			if names := volumes[w.Namespace+"/"+pod]; len(names) > 0 {
				out = append(out, findings.Failed(w.String(), "pods of %s have emptyDir volumes: %s", w, strings.Join(names, ", ")))
				break
			}
		}
	}
	for i := range in.Fates.Evictions {
		key := client.ObjectKeyFromObject(&in.Fates.Evictions[i]).String()
		if names := volumes[key]; len(names) > 0 {
			out = append(out, findings.Failed("Pod "+key, "pod %s has emptyDir volumes: %s", key, strings.Join(names, ", ")))
		}
	}
	return out
}

func checkReferences(in Input) []findings.Result {
	return append(
		in.references(func(r references.Reference) bool { return (!r.IsPolicy() || r.Covered) && !in.changedElsewhere(r) }),
		in.unread(
			slices.Concat([]string{"configmaps", "secrets", "services", "ingresses", "endpointslices"}, inventory.SettingResources()),
		)...)
}

// changedElsewhere reports whether another check, or a gate, is about what takes one range of a
// family: with the target beside the old range, kube-proxy and what kubeadm writes do not start.
func (in Input) changedElsewhere(r references.Reference) bool {
	return r.Object == "ConfigMap kube-system/"+controlplane.KubeadmConfig || r.Object == "ConfigMap kube-system/"+podnetwork.CiliumConfig ||
		in.Live.Inspection.OfProxy(r)
}

func checkPolicies(in Input) []findings.Result {
	return append(in.references(func(r references.Reference) bool { return r.IsPolicy() && !r.Covered }),
		in.unread(append([]string{"networkpolicies"}, inventory.PolicyResources()...))...)
}

// unread says which of the resources that a check is about could not be looked through.
func (in Input) unread(resources []string) []findings.Result {
	if in.Live.Inspection == nil {
		return nil // references says so
	}
	missing := slices.DeleteFunc(resources, func(r string) bool { return !in.Live.Inspection.Unread[r] })
	if len(missing) == 0 {
		return nil
	}
	return []findings.Result{findings.NotKnown("", "the user may not read %s", strings.Join(missing, ", "))}
}

func (in Input) references(of func(references.Reference) bool) []findings.Result {
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "the cluster was not looked through")}
	}
	var out []findings.Result
	for _, r := range in.Live.Inspection.References {
		if of(r) {
			out = append(out, findings.Failed(r.Object, "%s: %s names %s", r.Object, r.Field, r.Names()))
		}
	}
	return out
}

// checkOthers allows a mirror, which serves meanwhile, and one of the same set that has moved.
func checkOthers(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Others {
		m := &in.Others[i]
		under := m.Status.Phase == v1alpha1.PhaseApplying || m.Status.Phase == v1alpha1.PhaseMoved ||
			m.Status.Phase == v1alpha1.PhaseRollingBack || m.Status.Phase == v1alpha1.PhaseFinishing
		if m.Name != in.Inventory.Spec.Name && under && m.Spec.Mirror == nil && !migration.Beside(m, in.Inventory.Spec.Name) {
			out = append(out, findings.Failed("Migration "+m.Name, "migration %s is %s", m.Name, m.Status.Phase))
		}
	}
	return out
}
