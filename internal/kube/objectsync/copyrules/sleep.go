package copyrules

import (
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/spec"
)

func (r *Rules) Concerns(k objects.ResourceKind, o *unstructured.Unstructured) bool {
	return r.Owns(o) || r.WhyNot(k, o) == ""
}

type singleton struct{ kind, namespace, name string }

func readSingletons(workloads []string) (map[singleton]bool, error) {
	all := map[singleton]bool{}
	for i, w := range workloads {
		parts := strings.Split(w, "/")
		kinds := map[string]string{
			"deployment": "Deployment", "deployments": "Deployment", "deployments.apps": "Deployment",
			"statefulset": "StatefulSet", "statefulsets": "StatefulSet", "statefulsets.apps": "StatefulSet",
		}
		if len(parts) != 3 || kinds[strings.ToLower(parts[0])] == "" || parts[1] == "" || parts[2] == "" {
			return nil, &spec.Error{
				Field: fmt.Sprintf("spec.mirror.singletons.workloads[%d]", i), Problem: fmt.Sprintf("%q is not kind/namespace/name", w),
				Hint: "write it such as deployment/shop/worker; Deployments and StatefulSets can be named",
			}
		}
		all[singleton{kinds[strings.ToLower(parts[0])], parts[1], parts[2]}] = true
	}
	return all, nil
}

// Sleep is the field that keeps a singleton from running, and the annotation with its former value.
type Sleep struct {
	field      string
	value      any
	otherwise  any
	annotation string
	parse      func(string) (any, error)
	// settles says that a controller may act once more on what it knew before.
	settles bool
}

// SleepOf is nil for what may run in both clusters.
func (r *Rules) SleepOf(k objects.ResourceKind, o *unstructured.Unstructured) *Sleep {
	once := o.GetAnnotations()[v1alpha1.AnnotationRunOnce] == "true"
	switch {
	case k.Is("batch", "CronJob") && (once || r.options.Singletons.CronJobs == v1alpha1.CronJobsSuspend):
		return &Sleep{
			field: "suspend", value: true, otherwise: false, annotation: v1alpha1.AnnotationSuspend, settles: true,
			parse: func(s string) (any, error) { return strconv.ParseBool(s) },
		}
	case k.Is("apps", "Deployment") || k.Is("apps", "StatefulSet"):
		if once || r.singletons[singleton{k.Kind, o.GetNamespace(), o.GetName()}] {
			return &Sleep{
				field: "replicas", value: int64(0), otherwise: int64(1), annotation: v1alpha1.AnnotationReplicas,
				parse: func(s string) (any, error) { return strconv.ParseInt(s, 10, 32) },
			}
		}
	}
	return nil
}

func (s *Sleep) original(o *unstructured.Unstructured) any {
	if text, ok := o.GetAnnotations()[s.annotation]; ok {
		if v, err := s.parse(text); err == nil {
			return v
		}
	}
	if v, ok := objects.Inside(o.Object, "spec")[s.field]; ok {
		return v
	}
	return s.otherwise
}

func (s *Sleep) Asleep(o *unstructured.Unstructured) bool {
	_, marked := o.GetAnnotations()[s.annotation]
	return marked && objects.Inside(o.Object, "spec")[s.field] == s.value
}

// PutToSleep patches a singleton that runs; nil for one that is asleep.
func (s *Sleep) PutToSleep(o *unstructured.Unstructured) map[string]any {
	if s.Asleep(o) {
		return nil
	}
	return s.patch(s.value, fmt.Sprint(s.original(o)))
}

// Wake patches a singleton that is marked; nil for others.
func (s *Sleep) Wake(o *unstructured.Unstructured) map[string]any {
	if _, marked := o.GetAnnotations()[s.annotation]; !marked {
		return nil
	}
	if !s.Asleep(o) { // someone has woken it
		return s.patch(objects.Inside(o.Object, "spec")[s.field], nil)
	}
	return s.patch(s.original(o), nil)
}

func (s *Sleep) patch(value, annotation any) map[string]any {
	notes := map[string]any{s.annotation: annotation}
	if s.settles {
		notes[v1alpha1.AnnotationSettled] = nil
	}
	return map[string]any{"spec": map[string]any{s.field: value}, "metadata": map[string]any{"annotations": notes}}
}

// IsAsleep goes by what Sleep leaves on a singleton.
func IsAsleep(o metav1.Object) bool {
	notes := o.GetAnnotations()
	_, suspended := notes[v1alpha1.AnnotationSuspend]
	_, scaled := notes[v1alpha1.AnnotationReplicas]
	return suspended || scaled
}

// suspend keeps copies of singletons from running until names lead to them.
func (r *Rules) suspend(k objects.ResourceKind, o *unstructured.Unstructured) {
	s := r.SleepOf(k, o)
	if s == nil {
		return
	}
	original := s.original(o)
	within := objects.Inside(o.Object, "spec")
	if within == nil {
		return
	}
	if r.options.Awake {
		within[s.field] = original
		annotations := o.GetAnnotations()
		delete(annotations, s.annotation)
		objects.SetOrDrop(o, "annotations", annotations)
		return
	}
	within[s.field] = s.value
	objects.SetAnnotation(o, s.annotation, fmt.Sprint(original))
	if s.settles { // it has never run
		objects.SetAnnotation(o, v1alpha1.AnnotationSettled, "true")
	}
}
