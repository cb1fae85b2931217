package rollout

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// adapter is what the kinds of workloads have in common.
type adapter interface {
	object() client.Object
	list() client.ObjectList
	workload() *Workload
	selector() *metav1.LabelSelector
	template() *corev1.PodTemplateSpec
	// halted says why a change of the template restarts nothing now; final, if pods stay too.
	halted() (reason string, final bool)
	renews(pod *corev1.Pod) bool
}

func newAdapter(kind string) adapter {
	switch kind {
	case KindStatefulSet:
		return statefulSetAdapter{&appsv1.StatefulSet{}}
	case KindDaemonSet:
		return daemonSetAdapter{&appsv1.DaemonSet{}}
	}
	return deploymentAdapter{&appsv1.Deployment{}}
}

// restartedAt is when replumb last restarted the workload; zero, if never.
func restartedAt(a adapter) time.Time {
	at, err := time.Parse(time.RFC3339Nano, a.template().Annotations[v1alpha1.AnnotationRestartedAt])
	if err != nil {
		return time.Time{}
	}
	return at
}

func describe(kind string, m *metav1.ObjectMeta, template *corev1.PodTemplateSpec) *Workload {
	return &Workload{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID, PodLabels: template.Labels}
}

// complete returns nil if the rollout of the present template is through, else what is outstanding.
func complete(a adapter) error {
	if ok, why := readiness.Workload(a.object()); !ok {
		return engine.NotYet("%s: %s", a.workload(), why)
	}
	return nil
}

func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

type deploymentAdapter struct{ *appsv1.Deployment }

func (deploymentAdapter) list() client.ObjectList             { return &appsv1.DeploymentList{} }
func (d deploymentAdapter) object() client.Object             { return d.Deployment }
func (d deploymentAdapter) selector() *metav1.LabelSelector   { return d.Spec.Selector }
func (d deploymentAdapter) template() *corev1.PodTemplateSpec { return &d.Spec.Template }
func (d deploymentAdapter) renews(*corev1.Pod) bool           { return true }

func (d deploymentAdapter) workload() *Workload {
	w := describe(KindDeployment, &d.ObjectMeta, &d.Spec.Template)
	w.AllAtOnce = d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
	return w
}

func (d deploymentAdapter) halted() (string, bool) {
	if d.Spec.Paused {
		return d.workload().String() + " is paused", true
	}
	return "", false
}

type statefulSetAdapter struct{ *appsv1.StatefulSet }

func (statefulSetAdapter) list() client.ObjectList             { return &appsv1.StatefulSetList{} }
func (s statefulSetAdapter) object() client.Object             { return s.StatefulSet }
func (s statefulSetAdapter) selector() *metav1.LabelSelector   { return s.Spec.Selector }
func (s statefulSetAdapter) template() *corev1.PodTemplateSpec { return &s.Spec.Template }

func (s statefulSetAdapter) workload() *Workload {
	return describe(KindStatefulSet, &s.ObjectMeta, &s.Spec.Template)
}

func (s statefulSetAdapter) halted() (string, bool) {
	if s.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return s.workload().String() + " has updateStrategy OnDelete", false
	}
	return "", false
}

// partition counts from the first ordinal (updateStatefulSet in k8s.io/kubernetes
// pkg/controller/statefulset/stateful_set_control.go).
func (s statefulSetAdapter) partition() int32 {
	if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
		return *u.Partition
	}
	return 0
}

func (s statefulSetAdapter) renews(pod *corev1.Pod) bool {
	first := int32(0)
	if s.Spec.Ordinals != nil {
		first = s.Spec.Ordinals.Start
	}
	return ordinal(pod) >= int(first+s.partition())
}

type daemonSetAdapter struct{ *appsv1.DaemonSet }

func (daemonSetAdapter) list() client.ObjectList             { return &appsv1.DaemonSetList{} }
func (d daemonSetAdapter) object() client.Object             { return d.DaemonSet }
func (d daemonSetAdapter) selector() *metav1.LabelSelector   { return d.Spec.Selector }
func (d daemonSetAdapter) template() *corev1.PodTemplateSpec { return &d.Spec.Template }
func (d daemonSetAdapter) renews(*corev1.Pod) bool           { return true }

func (d daemonSetAdapter) workload() *Workload {
	return describe(KindDaemonSet, &d.ObjectMeta, &d.Spec.Template)
}

func (d daemonSetAdapter) halted() (string, bool) {
	if d.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return d.workload().String() + " has updateStrategy OnDelete", false
	}
	return "", false
}
