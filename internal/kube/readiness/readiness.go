// Package readiness defines when pods are ready, and workloads complete.
package readiness

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pod reports whether a pod is ready and does not end. kstatus calls an ended pod current.
func Pod(p *corev1.Pod) (ready bool, why string) {
	switch {
	case !p.DeletionTimestamp.IsZero():
		return false, "it is ending"
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return false, "it has ended: " + phrase(string(p.Status.Phase), p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true, ""
		}
	}
	if why := Blocked(p); why != "" {
		return false, why
	}
	return false, "it is not ready"
}

// Blocked says what keeps a pod from running, if that does not pass by itself.
func Blocked(p *corev1.Pod) string {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch w, t := s.State.Waiting, s.State.Terminated; {
		case w != nil && w.Reason != "" && w.Reason != "PodInitializing" && (w.Reason != "ContainerCreating" || w.Message != ""):
			return "container " + s.Name + " waits: " + phrase(w.Reason, w.Message)
		case t != nil && t.ExitCode != 0:
			return fmt.Sprintf("container %s ended with exit code %d: %s", s.Name, t.ExitCode, phrase(t.Reason, t.Message))
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "it is on no node: " + phrase(c.Reason, c.Message)
		}
	}
	return ""
}

func phrase(words ...string) string {
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}

// Workload reports whether a workload has all pods of its present template available. It is
// kstatus, except where that proves too little or asks too much.
func Workload(o client.Object) (complete bool, why string) {
	if observed(o) < o.GetGeneration() { // kstatus passes over this as long as a controller has not observed anything
		return false, "its controller has not seen the change"
	}
	complete, why = current(o)
	switch o := o.(type) {
	case *appsv1.Deployment:
		if o.Spec.Paused {
			// kstatus waits for progress, which a paused Deployment does not report.
			complete, why = available(o.Status.AvailableReplicas, o.Spec.Replicas)
		}
		for _, c := range o.Status.Conditions { // kstatus does not say why, such as a quota
			if !complete && c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				why += ": " + c.Message
			}
		}
	case *appsv1.StatefulSet:
		// kstatus ignores the pods of updateStrategy OnDelete, and minReadySeconds.
		if complete {
			complete, why = available(o.Status.AvailableReplicas, o.Spec.Replicas)
		}
	}
	return complete, why
}

func observed(o client.Object) int64 {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return o.Status.ObservedGeneration
	case *appsv1.StatefulSet:
		return o.Status.ObservedGeneration
	case *appsv1.DaemonSet:
		return o.Status.ObservedGeneration
	}
	return 0
}

func available(have int32, want *int32) (bool, string) {
	if n := ptr.Deref(want, 1); have < n {
		return false, fmt.Sprintf("Available: %d/%d", have, n)
	}
	return true, ""
}

// current asks kstatus, which needs the kind that typed objects lack.
func current(o client.Object) (bool, string) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return false, err.Error()
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kindOf(o))
	result, err := status.Compute(u)
	if err != nil {
		return false, err.Error()
	}
	return result.Status == status.CurrentStatus, result.Message
}

func kindOf(o client.Object) schema.GroupVersionKind {
	switch o.(type) {
	case *appsv1.Deployment:
		return appsv1.SchemeGroupVersion.WithKind("Deployment")
	case *appsv1.StatefulSet:
		return appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	case *appsv1.DaemonSet:
		return appsv1.SchemeGroupVersion.WithKind("DaemonSet")
	}
	return o.GetObjectKind().GroupVersionKind()
}
