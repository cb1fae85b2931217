package audit

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

// revision, on a Deployment, is its controller's.
const revision = "deployment.kubernetes.io/revision"

// auditDeployments compares Deployments and their pods with the model.
func (r *report) auditDeployments() {
	left := maps.Clone(r.Model.Deployments)
	for i := range r.Deployments {
		have := &r.Deployments[i]
		key := keyOf(have)
		want := left[key]
		delete(left, key)
		switch {
		case want != nil:
			r.auditDeployment(want, have)
		case r.Model.Namespaces[have.Namespace]:
			r.add(name("deployment", key), "is left over")
		}
	}
	for key := range left {
		r.add(name("deployment", key), "is lost")
	}
}

func (r *report) auditDeployment(want, have *appsv1.Deployment) {
	object := name("deployment", keyOf(want))
	replicas := ptr.Deref(want.Spec.Replicas, 1)
	if got := ptr.Deref(have.Spec.Replicas, 1); got != replicas {
		r.add(object, "has %d replicas instead of %d", got, replicas)
	}
	s := have.Status
	if s.ObservedGeneration < have.Generation || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas ||
		s.Replicas != replicas {
		r.add(object, "of %d pods %d are of the last revision and %d available", s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
	}
	r.sameMap(object, "label", want.Labels, have.Labels)
	r.sameMap(object, "annotation", want.Annotations, without(have.Annotations, revision))
	r.sameMap(object, "label of pods", want.Spec.Template.Labels, have.Spec.Template.Labels)
	// A restart cannot be taken back: to take the annotation away would be another one.
	r.sameMap(object, "annotation of pods", want.Spec.Template.Annotations,
		without(have.Spec.Template.Annotations, v1alpha1.AnnotationRestartedAt))
	if spec, known := r.Specs[keyOf(want)]; known {
		for _, field := range differences(spec, have.Spec.Template.Spec) {
			r.add(object, "has another spec.template.spec.%s", field)
		}
	}
	r.auditPods(object, have, int(replicas))
}

func (r *report) auditPods(object string, d *appsv1.Deployment, want int) {
	n := 0
	for i := range r.Pods {
		pod := &r.Pods[i]
		mine := pod.Namespace == d.Namespace && labels.SelectorFromSet(d.Spec.Template.Labels).Matches(labels.Set(pod.Labels))
		if mine && pod.DeletionTimestamp == nil {
			n++
			if !serves(pod) {
				r.add(object, "pod %s is not ready", pod.Name)
			}
		}
	}
	if n != want {
		r.add(object, "has %d pods instead of %d", n, want)
	}
}

func without(all map[string]string, keys ...string) map[string]string {
	rest := maps.Clone(all)
	maps.DeleteFunc(rest, func(key, _ string) bool { return slices.Contains(keys, key) })
	return rest
}
