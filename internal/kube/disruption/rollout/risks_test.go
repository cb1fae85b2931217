package rollout

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestGap(t *testing.T) {
	surge := func(most string) *appsv1.RollingUpdateDeployment {
		n := intstr.Parse(most)
		return &appsv1.RollingUpdateDeployment{MaxSurge: &n}
	}
	port := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}},
	}}}}
	s := &State{
		Deployments: []appsv1.Deployment{
			{ObjectMeta: named("one"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}},
			{ObjectMeta: named("swapped"), Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](1), Strategy: appsv1.DeploymentStrategy{RollingUpdate: surge("0%")},
			}},
			{ObjectMeta: named("two"), Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](2), Strategy: appsv1.DeploymentStrategy{RollingUpdate: surge("0")},
			}},
		},
		StatefulSets: []appsv1.StatefulSet{
			{ObjectMeta: named("redis")}, {ObjectMeta: named("etcd"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}},
		},
		DaemonSets: []appsv1.DaemonSet{
			{ObjectMeta: named("ingress"), Spec: appsv1.DaemonSetSpec{Template: slimTemplate(&port)}}, {ObjectMeta: named("log")},
		},
	}
	for name, want := range map[string]bool{
		"one": false, "swapped": true, "two": false, "redis": true, "etcd": false, "ingress": true, "log": false,
	} {
		w := &Workload{Namespace: "shop", Name: name, UID: named(name).UID}
		if got := s.Gap(w); (got != "") != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if s.Gap(&Workload{AllAtOnce: true}) == "" {
		t.Error("strategy Recreate leaves no gap")
	}
}

func TestOverlaps(t *testing.T) {
	one, quarter := intstr.FromInt32(1), intstr.FromString("25%")
	for _, tt := range []struct {
		name     string
		replicas int32
		most     *intstr.IntOrString
		settle   int32
		want     bool
	}{
		{"as kubeadm has it", 2, &one, 10, false},
		{"a quarter of two is none", 2, &quarter, 10, true},
		{"a quarter of four is one", 4, &quarter, 10, false},
		{"the default", 2, nil, 10, true},
		{"not known to every node yet", 2, &quarter, 0, false},
	} {
		s := &State{Deployments: []appsv1.Deployment{{ObjectMeta: named("dns"), Spec: appsv1.DeploymentSpec{
			Replicas: &tt.replicas, MinReadySeconds: tt.settle,
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: tt.most}},
		}}}}
		if got := s.Overlaps(&Workload{UID: "dns"}, 5*time.Second); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// TestUnfinishedBefore: what was not complete before is distinguished from what replumb has
// restarted, and a node that is away from both.
func TestUnfinishedBefore(t *testing.T) {
	status := appsv1.DaemonSetStatus{
		ObservedGeneration:     1,
		DesiredNumberScheduled: 2,
		CurrentNumberScheduled: 2,
		UpdatedNumberScheduled: 2,
		NumberAvailable:        1,
		NumberReady:            1,
	}
	set := appsv1.DaemonSet{ObjectMeta: named("log"), Status: status}
	set.Generation = 1
	restarted := set
	restarted.Spec.Template.Annotations = map[string]string{"replumb.dev/restarted-at": noon.Add(time.Minute).Format(time.RFC3339Nano)}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	here, there := owned("log-1", "DaemonSet", "log"), owned("log-2", "DaemonSet", "log")
	ready(&here)
	there.Spec.NodeName = "n2"
	for _, tt := range []struct {
		name             string
		set              appsv1.DaemonSet
		away             map[string]bool
		unfinished, left bool
	}{
		{"a pod is missing", set, nil, true, false},
		{"by replumb's restart", restarted, nil, false, false},
		{"its node is away", set, map[string]bool{"n2": true}, false, true},
		{"another node is away", set, map[string]bool{"n3": true}, true, false},
	} {
		s := &State{Pods: []corev1.Pod{here, there}, DaemonSets: []appsv1.DaemonSet{tt.set}, Away: tt.away}
		plan := s.Plan(Changes{KubernetesMovedAt: noon}, "")
		if len(plan.Restarts) != 1 || (plan.Restarts[0].Unfinished != "") != tt.unfinished || (len(plan.Reported) > 0) != tt.left {
			t.Errorf("%s: %+v", tt.name, plan)
		}
		if left := plan.Unfinished(Changes{KubernetesMovedAt: noon}, s); (len(left) == 2) != tt.unfinished {
			t.Errorf("%s: left alone: %+v", tt.name, left)
		}
	}
}
