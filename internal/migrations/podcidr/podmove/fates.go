package podmove

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/kube/disruption/rollout"
)

// kindJob owns pods that are waited for: to restart them would be to do their work twice.
const kindJob = "Job"

// Fates say what becomes of the pods that a direction leaves behind.
type Fates struct {
	rollout.RestartPlan
	Jobs []rollout.Reported
}

// Fates of the pods that are to change.
func (s *Inventory) Fates(c rollout.Changes) Fates {
	f := Fates{RestartPlan: s.Workloads.Plan(c, s.Spec.Roll.BarePods)}
	ofJob := func(pod corev1.Pod) bool {
		ref := metav1.GetControllerOf(&pod)
		return ref != nil && ref.Kind == kindJob
	}
	for i := range f.Evictions {
		if pod := &f.Evictions[i]; ofJob(*pod) {
			f.Jobs = append(f.Jobs, rollout.Reported{
				Pod:  types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
				Node: pod.Spec.NodeName, Owner: kindJob + " " + metav1.GetControllerOf(pod).Name,
			})
		}
	}
	f.Evictions = slices.DeleteFunc(f.Evictions, ofJob)
	reportedJob := func(r rollout.Reported) bool { return strings.HasPrefix(r.Owner, kindJob+" ") }
	for _, r := range f.Reported {
		if reportedJob(r) {
			f.Jobs = append(f.Jobs, r)
		}
	}
	f.Reported = slices.DeleteFunc(f.Reported, reportedJob)
	return f
}

// Names are those of the workloads and pods that are restarted.
func (f *Fates) Names() []string {
	var all []string
	for _, w := range f.Restarts {
		all = append(all, w.String())
	}
	for i := range f.Evictions {
		all = append(all, "Pod "+f.Evictions[i].Namespace+"/"+f.Evictions[i].Name)
	}
	return all
}
