package objectsync

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Unready are the copied workloads of the target that do not have all their pods ready, each with the reason that can be seen:
// an image that does not come, no room, a quota. Singletons that sleep are ready.
func (c *Copier) Unready(ctx context.Context) ([]Note, error) {
	var notes []Note
	mine := client.MatchingLabels{v1alpha1.LabelMirror: c.Rules.options.Migration}
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &corev1.PodList{},
	} {
		for {
			if err := c.Target.List(ctx, list, mine, client.Limit(pageSize), client.Continue(list.GetContinue())); err != nil {
				return nil, fmt.Errorf("reading workloads of the target: %w", err)
			}
			for _, w := range progress(list) {
				if w.ready >= w.want && w.seen {
					continue
				}
				what, err := c.why(ctx, w)
				if err != nil {
					return nil, err
				}
				notes = append(notes, Note{w.ref, what})
			}
			if list.GetContinue() == "" {
				break
			}
		}
	}
	return notes, nil
}

// workload is how far one has come.
type workload struct {
	ref         Ref
	want, ready int32
	// seen by its controller as it is now.
	seen     bool
	selector *metav1.LabelSelector
	pod      *corev1.Pod
	message  string
}

func progress(list client.ObjectList) []workload {
	var all []workload
	add := func(resource string, o client.Object, want *int32, ready int32, observed int64, s *metav1.LabelSelector, message string) {
		w := workload{
			ref: Ref{resource, o.GetNamespace(), o.GetName()}, want: 1, ready: ready, selector: s, message: message,
			seen: observed >= o.GetGeneration(),
		}
		if want != nil {
			w.want = *want
		}
		all = append(all, w)
	}
	switch list := list.(type) {
	case *appsv1.DeploymentList:
		for i := range list.Items {
			o := &list.Items[i]
			message := ""
			for _, cond := range o.Status.Conditions {
				if cond.Type == appsv1.DeploymentReplicaFailure && cond.Status == corev1.ConditionTrue {
					message = cond.Message
				}
			}
			ready := min(o.Status.ReadyReplicas, o.Status.UpdatedReplicas)
			add("deployments.apps", o, o.Spec.Replicas, ready, o.Status.ObservedGeneration, o.Spec.Selector, message)
		}
	case *appsv1.StatefulSetList:
		for i := range list.Items {
			o := &list.Items[i]
			add("statefulsets.apps", o, o.Spec.Replicas, o.Status.ReadyReplicas, o.Status.ObservedGeneration, o.Spec.Selector, "")
		}
	case *appsv1.DaemonSetList:
		for i := range list.Items {
			o := &list.Items[i]
			s := o.Status
			add("daemonsets.apps", o, &s.DesiredNumberScheduled, s.NumberReady, s.ObservedGeneration, o.Spec.Selector, "")
		}
	case *corev1.PodList:
		for i := range list.Items {
			o := &list.Items[i]
			w := workload{ref: Ref{"pods", o.Namespace, o.Name}, want: 1, seen: true, pod: o}
			if podReady(o) {
				w.ready = 1
			}
			all = append(all, w)
		}
	}
	return all
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// why looks at the pods of a workload for what keeps it.
func (c *Copier) why(ctx context.Context, w workload) (string, error) {
	count := fmt.Sprintf("%d of %d pods are ready", w.ready, w.want)
	if w.pod != nil {
		return reasonOf(w.pod), nil
	}
	if w.message != "" {
		return count + ": " + w.message, nil
	}
	s, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return count, nil //nolint:nilerr // the API server would not have taken it; the count is what there is to say
	}
	pods := &corev1.PodList{}
	if err := c.Target.List(ctx, pods, client.InNamespace(w.ref.Namespace), client.MatchingLabelsSelector{Selector: s}); err != nil {
		return "", fmt.Errorf("reading pods of %s: %w", w.ref, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !podReady(p) {
			return count + ": pod " + p.Name + " " + reasonOf(p), nil
		}
	}
	if !w.seen {
		return count + ": its controller has not seen it yet", nil
	}
	return count, nil
}

// reasonOf says what a pod waits for.
func reasonOf(p *corev1.Pod) string {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, s := range list {
			switch {
			case s.State.Waiting != nil && s.State.Waiting.Reason != "PodInitializing" && s.State.Waiting.Reason != "ContainerCreating":
				return fmt.Sprintf("has container %s waiting with %s: %s", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
			case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
				return fmt.Sprintf("has container %s ended with %s (exit code %d)",
					s.Name, s.State.Terminated.Reason, s.State.Terminated.ExitCode)
			}
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("is on no node: %s", c.Message)
		}
	}
	return "is not ready"
}
