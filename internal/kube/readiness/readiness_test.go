package readiness

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type (
	deploymentStatus  = appsv1.DeploymentStatus
	statefulSetStatus = appsv1.StatefulSetStatus
	daemonSetStatus   = appsv1.DaemonSetStatus
)

// deployment wants two pods, and its controller has reported progress and availability.
func deployment(s deploymentStatus, change ...func(*appsv1.Deployment)) client.Object {
	s.Conditions = append(s.Conditions,
		appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue})
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: s,
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), ProgressDeadlineSeconds: ptr.To[int32](600)},
	}
	for _, c := range change {
		c(d)
	}
	return d
}

func statefulSet(s statefulSetStatus, change ...func(*appsv1.StatefulSet)) client.Object {
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: s, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](2)},
	}
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0)} // the default
	for _, c := range change {
		c(set)
	}
	return set
}

func daemonSet(s daemonSetStatus) client.Object {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: s}
}

func TestWorkload(t *testing.T) {
	paused := func(d *appsv1.Deployment) { d.Spec.Paused, d.Status.Conditions = true, nil }
	half := func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = ptr.To[int32](1) }
	byHand := func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType }
	quota := []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota",
	}}
	whole := deploymentStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, ReadyReplicas: 2}
	unseen, old, unavailable, refused := whole, whole, whole, whole
	unseen.ObservedGeneration, old.Replicas, unavailable.AvailableReplicas = 2, 3, 1
	refused.Replicas, refused.Conditions = 1, quota
	set := statefulSetStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
	part, starting, young := set, set, set
	part.UpdatedReplicas, starting.ReadyReplicas, young.AvailableReplicas = 1, 1, 1
	daemons := daemonSetStatus{
		ObservedGeneration:     3,
		DesiredNumberScheduled: 2,
		CurrentNumberScheduled: 2,
		UpdatedNumberScheduled: 2,
		NumberAvailable:        2,
		NumberReady:            2,
	}
	stale, away, unwatched := daemons, daemons, daemons
	stale.UpdatedNumberScheduled, away.NumberAvailable, unwatched.ObservedGeneration = 1, 1, 0
	for _, tt := range []struct {
		name string
		o    client.Object
		want string // empty: complete
	}{
		{"deployment", deployment(whole), ""},
		{"deployment unseen", deployment(unseen), "has not seen the change"},
		{"deployment with old pods", deployment(old), "Pending termination: 1"},
		{"deployment unavailable", deployment(unavailable), "Available: 1/2"},
		{"deployment without room", deployment(refused), "Replicas: 1/2: exceeded quota"},
		{"deployment paused", deployment(whole, paused), ""},
		{"deployment paused and short", deployment(unavailable, paused), "Available: 1/2"},
		{"deployment paused and unseen", deployment(unseen, paused), "has not seen the change"},
		{"statefulset", statefulSet(set), ""},
		{"statefulset half way", statefulSet(part), "updated: 1/2"},
		{"statefulset in part", statefulSet(part, half), ""},
		{"statefulset starting", statefulSet(starting), "Ready: 1/2"},
		{"statefulset not long enough", statefulSet(young), "Available: 1/2"},
		{"statefulset updated by hand", statefulSet(part, byHand), ""},
		{"statefulset updated by hand and short", statefulSet(young, byHand), "Available: 1/2"},
		{"daemonset", daemonSet(daemons), ""},
		{"daemonset half way", daemonSet(stale), "Updated: 1/2"},
		{"daemonset unavailable", daemonSet(away), "Available: 1/2"},
		{"daemonset unseen", daemonSet(unwatched), "has not seen the change"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			complete, why := Workload(tt.o)
			if complete != (tt.want == "") || !complete && !strings.Contains(why, tt.want) {
				t.Errorf("%v, %q, want %q", complete, why, tt.want)
			}
		})
	}
}

func TestPod(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	ready := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	container := func(s corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", State: s}}}
	}
	waiting := func(reason, message string) corev1.PodStatus {
		return container(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	full := corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available",
	}}}
	ended := ready
	ended.Phase, ended.Reason = corev1.PodFailed, "Evicted"
	for _, tt := range []struct {
		name          string
		pod           corev1.Pod
		want, blocked string // want is empty for a pod that is ready
	}{
		{"ready", corev1.Pod{Status: ready}, "", ""},
		{"ending", corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}, Status: ready}, "it is ending", ""},
		{"ended", corev1.Pod{Status: ended}, "it has ended: Failed Evicted", ""},
		{"new", corev1.Pod{}, "it is not ready", ""},
		{"creating", corev1.Pod{Status: waiting("ContainerCreating", "")}, "it is not ready", ""},
		{
			"no network",
			corev1.Pod{Status: waiting("ContainerCreating", "no address")},
			"container web waits: ContainerCreating no address", "container web waits: ContainerCreating no address",
		},
		{
			"no image",
			corev1.Pod{Status: waiting("ErrImagePull", "not found")},
			"container web waits: ErrImagePull not found", "container web waits: ErrImagePull not found",
		},
		{
			"crashed",
			corev1.Pod{Status: container(corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"},
			})},
			"container web ended with exit code 1: Error", "container web ended with exit code 1: Error",
		},
		{
			"no room",
			corev1.Pod{Status: full},
			"it is on no node: Unschedulable 0/3 nodes are available", "it is on no node: Unschedulable 0/3 nodes are available",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ready, why := Pod(&tt.pod); ready != (tt.want == "") || why != tt.want {
				t.Errorf("%v, %q, want %q", ready, why, tt.want)
			}
			if got := Blocked(&tt.pod); got != tt.blocked {
				t.Errorf("blocked by %q, want %q", got, tt.blocked)
			}
		})
	}
}
