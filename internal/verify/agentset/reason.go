package agentset

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/readiness"
	"github.com/replumb/replumb/internal/kube/workload"
)

type index struct {
	view    *View
	pods    map[agentKey]*corev1.Pod
	reports map[agentKey]*v1alpha1.AgentReport
}

func newIndex(v *View) *index {
	x := &index{view: v, pods: map[agentKey]*corev1.Pod{}, reports: map[agentKey]*v1alpha1.AgentReport{}}
	for i := range v.Pods {
		p := &v.Pods[i]
		k := agentKey{nodeOf(p), OriginOf(p)}
		if before(x.pods[k], p) {
			x.pods[k] = p
		}
	}
	for i := range v.Reports {
		r := &v.Reports[i]
		for j := range r.Status.Agents {
			x.reports[agentKey{r.Name, r.Status.Agents[j].Origin}] = &r.Status.Agents[j]
		}
	}
	return x
}

// before reports whether the other pod is the one that counts: one that does not end, or the
// younger one.
func before(p, other *corev1.Pod) bool {
	if p == nil {
		return true
	}
	if going, leaving := p.DeletionTimestamp.IsZero(), other.DeletionTimestamp.IsZero(); going != leaving {
		return leaving
	}
	return p.CreationTimestamp.Before(&other.CreationTimestamp)
}

// nodeOf is the node that a pod of a DaemonSet is for, also as long as it is not scheduled
// (ReplaceDaemonSetPodNodeNameNodeAffinity in k8s.io/kubernetes
// pkg/controller/daemon/util/daemonset_util.go).
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil {
		return p.Spec.NodeName
	}
	required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// OriginOf is the network that a pod of replumb's namespace is an agent in; empty if it is none.
func OriginOf(p *corev1.Pod) v1alpha1.ProbeOrigin {
	switch p.Labels[v1alpha1.LabelRole] {
	case v1alpha1.RoleAgent:
		return v1alpha1.FromHost
	case v1alpha1.RoleProbe:
		return v1alpha1.FromPod
	}
	return ""
}

func setOf(o v1alpha1.ProbeOrigin) string {
	if o == v1alpha1.FromPod {
		return PodSet
	}
	return HostSet
}

// why says why an agent does not report; empty if it does. The text has no time, as each change of
// it is reported.
func (x *index) why(k agentKey, a *agent, wait time.Duration) (workload.Cause, string) {
	set, pod := setOf(k.origin), x.pods[k]
	template, exists := x.view.Sets[set]
	switch {
	case !exists:
		return workload.NoPod, fmt.Sprintf("daemonset %s/%s does not exist", v1alpha1.SystemNamespace, set)
	case pod == nil:
		return workload.NoPod, workload.And(fmt.Sprintf("there is no pod of daemonset %s/%s", v1alpha1.SystemNamespace, set), x.view.News[set])
	case !pod.DeletionTimestamp.IsZero():
		return workload.Starting, workload.And(fmt.Sprintf("pod %s is ending, and no other has been made", pod.Name), x.view.News[pod.Name])
	case pod.Annotations[workload.TemplateAnnotation] != template:
		return workload.Starting, fmt.Sprintf("pod %s is to be replaced", pod.Name)
	}
	if cause, reason := workload.Waiting(pod, x.view.News[pod.Name]); cause != "" {
		return cause, reason
	}
	if serves, _ := readiness.Pod(
		pod,
	); k.origin == v1alpha1.FromPod &&
		!serves { // agents of other nodes would see losses that are its own fault
		return workload.Starting, fmt.Sprintf("pod %s runs, but is not ready to be asked", pod.Name)
	}
	return x.mute(k, a, pod, wait)
}

func (x *index) mute(k agentKey, a *agent, pod *corev1.Pod, wait time.Duration) (workload.Cause, string) {
	report := x.reports[k]
	switch {
	case report != nil && report.Instance != string(pod.UID): // of the pod before, or forged
		return workload.Mute, fmt.Sprintf("pod %s runs, but has not reported: what is reported is by instance %.60q", pod.Name, report.Instance)
	case report == nil:
		return workload.Mute, fmt.Sprintf("pod %s runs, but has not reported", pod.Name)
	case report.Problem != "":
		return workload.Trouble, fmt.Sprintf("pod %s reports: %s", pod.Name, report.Problem)
	case a.speaks != string(pod.UID):
		return workload.Mute, fmt.Sprintf("pod %s runs, but has not reported since it was first looked for", pod.Name)
	case x.view.Until.Sub(a.since) > wait:
		return workload.Mute, fmt.Sprintf("pod %s runs, but reports no more", pod.Name)
	}
	return "", ""
}
