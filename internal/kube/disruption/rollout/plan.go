package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
)

// Kinds of workloads that are restarted by rollout.
const (
	KindDeployment  = "Deployment"
	KindStatefulSet = "StatefulSet"
	KindDaemonSet   = "DaemonSet"

	kindReplicaSet = "ReplicaSet"
	kindJob        = "Job"
)

// Workload is something that restarts its pods by rollout.
type Workload struct {
	Kind      string
	Namespace string
	Name      string
	UID       types.UID
	PodLabels map[string]string
	// Stale are the names of those of its pods that a restart renews, sorted.
	Stale []string
	// Leaving says that an earlier run has taken a pod from it, which has not ended yet.
	Leaving bool
	// AllAtOnce says that its pods stop before new ones start (strategy Recreate).
	AllAtOnce bool
	// DataPlane says that it may program Services or routes on nodes, so that nothing may roll
	// beside it.
	DataPlane bool
	// ByPods says why its pods are replaced one by one, and not by a rollout; empty, if by that.
	ByPods string
	// TakenBack says that somebody undid a restart of it, and may keep its pods as they are.
	TakenBack bool
	// Unfinished says what it lacked before replumb restarted it; empty, if it was complete.
	Unfinished string
}

func (w Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Reported is a pod that is left to its owner.
type Reported struct {
	Pod     types.NamespacedName
	Node    string
	Owner   string
	Carries []string
	Reason  string
}

// RestartPlan says what becomes of each stale pod. All lists are in order of namespace and name.
type RestartPlan struct {
	Restarts  []Workload
	Evictions []corev1.Pod
	Reported  []Reported
}

// RestartPlan decides how each stale pod is renewed: by rollout, else by policy. Static pods and
// those of paused Deployments are always reported.
func (s *State) Plan(c Changes, policy v1alpha1.BarePodsPolicy) RestartPlan {
	o := s.owners()
	restarts := map[types.UID]*Workload{}
	var plan RestartPlan
	for i := range s.Pods {
		pod := &s.Pods[i]
		carries, taken := Stale(pod, c), o.takenFrom(pod, c)
		if len(carries) == 0 && taken == nil {
			continue
		}
		fate := s.fateOf(o, pod)
		if taken != nil {
			fate.workload = deploymentAdapter{taken}.workload()
		}
		if fate.workload != nil {
			w := restarts[fate.workload.UID]
			if w == nil {
				w = fate.workload
				w.Unfinished, w.DataPlane = s.unfinished(o, w, c), s.DataPlanes[w.UID]
				w.ByPods, w.TakenBack = s.byPods(o.adapterOf(w.UID))
				restarts[w.UID] = w
			}
			w.Stale = append(w.Stale, pod.Name)
			w.Leaving = w.Leaving || taken != nil
			continue
		}
		if several := budgetsOf(s.Budgets, pod); !fate.final && policy == v1alpha1.BarePodsEvict {
			if len(several) <= 1 {
				plan.Evictions = append(plan.Evictions, *pod)
				continue
			}
			// checkAndDecrement's caller in k8s.io/kubernetes
			// pkg/registry/core/pod/storage/eviction.go
			fate.reason = "PodDisruptionBudgets " + names(several) + " cover it, and the API server evicts no pod that has several"
		}
		plan.Reported = append(plan.Reported, report(pod, carries, fate.reason))
	}
	for _, w := range restarts {
		slices.Sort(w.Stale)
		if w.Leaving {
			w.Unfinished = "" // it lacks the pod that was taken
		}
		plan.Restarts = append(plan.Restarts, *w)
	}
	plan.sort()
	return plan
}

func (p *RestartPlan) sort() {
	slices.SortFunc(p.Restarts, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	slices.SortFunc(p.Evictions, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	sortReported(p.Reported)
}

func sortReported(all []Reported) {
	slices.SortFunc(all, func(a, b Reported) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
}

// Unsure reports whether the workload may keep stale pods, and the run goes on all the same.
func (w *Workload) Unsure() bool { return w.Unfinished != "" || w.TakenBack }

// Unfinished are the stale pods of workloads that were not complete before, and of those whose
// restart somebody undid.
func (p *RestartPlan) Unfinished(c Changes, s *State) []Reported {
	broken := map[types.NamespacedName]string{}
	for i := range p.Restarts {
		w := &p.Restarts[i]
		why := w.String() + ": " + w.ByPods
		if w.Unfinished != "" {
			why = w.String() + " is not complete: " + w.Unfinished
		}
		for _, name := range w.Stale {
			if w.Unsure() {
				broken[types.NamespacedName{Namespace: w.Namespace, Name: name}] = why
			}
		}
	}
	var all []Reported
	for i := range s.Pods {
		pod := &s.Pods[i]
		if reason := broken[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]; reason != "" {
			all = append(all, report(pod, Stale(pod, c), reason))
		}
	}
	sortReported(all)
	return all
}

// Left are all pods that are stale at present, whatever may become of them.
func (s *State) Left(c Changes) []Reported {
	o := s.owners()
	var all []Reported
	for i := range s.Pods {
		pod := &s.Pods[i]
		if carries := Stale(pod, c); len(carries) > 0 {
			fate := s.fateOf(o, pod)
			if fate.workload != nil {
				fate.reason = fate.workload.String() + " was not restarted"
			}
			all = append(all, report(pod, carries, fate.reason))
		}
	}
	sortReported(all)
	return all
}

// Rounds groups evictions so that no two pods of one controller are in the same group.
func Rounds(pods []corev1.Pod) [][]corev1.Pod {
	var rounds [][]corev1.Pod
	next := map[types.UID]int{}
	for i := range pods {
		round := 0
		if ref := metav1.GetControllerOf(&pods[i]); ref != nil {
			round = next[ref.UID]
			next[ref.UID]++
		}
		if round == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[round] = append(rounds[round], pods[i])
	}
	return rounds
}

func report(pod *corev1.Pod, carries []string, reason string) Reported {
	r := Reported{
		Pod:  types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		Node: pod.Spec.NodeName, Carries: carries, Reason: reason,
	}
	if ref := metav1.GetControllerOf(pod); ref != nil {
		r.Owner = ref.Kind + " " + ref.Name
	}
	return r
}

type fate struct {
	workload *Workload
	reason   string
	final    bool
}

type owners struct {
	replicaSets  map[types.UID]*metav1.PartialObjectMetadata
	deployments  map[types.UID]*appsv1.Deployment
	statefulSets map[types.UID]*appsv1.StatefulSet
	daemonSets   map[types.UID]*appsv1.DaemonSet
}

func (s *State) owners() *owners {
	o := &owners{
		map[types.UID]*metav1.PartialObjectMetadata{},
		map[types.UID]*appsv1.Deployment{},
		map[types.UID]*appsv1.StatefulSet{},
		map[types.UID]*appsv1.DaemonSet{},
	}
	for i := range s.ReplicaSets {
		o.replicaSets[s.ReplicaSets[i].UID] = &s.ReplicaSets[i]
	}
	for i := range s.Deployments {
		o.deployments[s.Deployments[i].UID] = &s.Deployments[i]
	}
	for i := range s.StatefulSets {
		o.statefulSets[s.StatefulSets[i].UID] = &s.StatefulSets[i]
	}
	for i := range s.DaemonSets {
		o.daemonSets[s.DaemonSets[i].UID] = &s.DaemonSets[i]
	}
	return o
}

// fateOf looks for the workload of a pod, by UID: kinds of other groups share names.
func (o *owners) fateOf(pod *corev1.Pod) fate {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return fate{reason: "a static pod: restart it on its node, by its manifest or with the kubelet", final: true}
	}
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return fate{reason: "it has no owner that would restart it"}
	}
	if rs := o.replicaSets[ref.UID]; rs != nil {
		above := metav1.GetControllerOf(rs)
		if above == nil {
			return fate{reason: "ReplicaSet " + ref.Name + " has no rollout"}
		}
		ref = above
	}
	if d := o.deployments[ref.UID]; d != nil {
		return rolled(deploymentAdapter{d}, pod)
	}
	if d := o.statefulSets[ref.UID]; d != nil {
		return rolled(statefulSetAdapter{d}, pod)
	}
	if d := o.daemonSets[ref.UID]; d != nil {
		return rolled(daemonSetAdapter{d}, pod)
	}
	if ref.Kind == kindJob {
		return fate{reason: "Job " + ref.Name + " has no rollout"}
	}
	return fate{reason: fmt.Sprintf("replumb cannot restart its owner, %s %s", ref.Kind, ref.Name)}
}

// takenFrom is the Deployment that an earlier run took a pod from, as the pod itself says.
func (o *owners) takenFrom(pod *corev1.Pod, c Changes) *appsv1.Deployment {
	if c.Migration == "" || !leaving.Marked(pod, c.Migration) {
		return nil
	}
	owner := leaving.MarkOf(pod).Owner
	if owner == nil {
		return nil
	}
	d := o.deployments[owner.UID]
	if d == nil || d.Namespace != pod.Namespace {
		return nil
	}
	return d
}

// AnyLeaving reports whether an earlier run has taken a pod from a Deployment that has not ended.
func (s *State) AnyLeaving(c Changes) bool {
	o := s.owners()
	return slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool { return o.takenFrom(&p, c) != nil })
}

func rolled(a adapter, pod *corev1.Pod) fate {
	if wish(a) == v1alpha1.RestartNever {
		return fate{reason: a.workload().String() + " is left to its owner (annotation " + v1alpha1.AnnotationRestart + ")", final: true}
	}
	if reason, final := a.halted(); reason != "" {
		return fate{reason: reason, final: final}
	}
	if !a.renews(pod) {
		return fate{reason: a.workload().String() + " is rolled out in part only (partition)"}
	}
	return fate{workload: a.workload()}
}

// budgetsOf are the PodDisruptionBudgets that cover a pod. A missing selector selects nothing, an
// empty one everything (k8s.io/api policy/v1, PodDisruptionBudgetSpec).
func budgetsOf(all []policyv1.PodDisruptionBudget, pod *corev1.Pod) []policyv1.PodDisruptionBudget {
	var covering []policyv1.PodDisruptionBudget
	for i := range all {
		selector, err := metav1.LabelSelectorAsSelector(all[i].Spec.Selector)
		if err == nil && all[i].Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			covering = append(covering, all[i])
		}
	}
	return covering
}

func names(budgets []policyv1.PodDisruptionBudget) string {
	var all []string
	for i := range budgets {
		all = append(all, budgets[i].Name)
	}
	return strings.Join(all, ", ")
}

func ordinal(pod *corev1.Pod) int {
	n, err := strconv.Atoi(pod.Name[strings.LastIndex(pod.Name, "-")+1:])
	if err != nil {
		return 0
	}
	return n
}
