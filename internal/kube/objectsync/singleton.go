package objectsync

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// singleton is a workload that must not run in both clusters.
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

// sleep is what keeps a singleton from running: a field, its value then, and the annotation that keeps the value before.
type sleep struct {
	field      string
	value      any
	otherwise  any
	annotation string
	parse      func(string) (any, error)
}

// sleepOf is nil for what may run in both clusters.
func (r *Rules) sleepOf(k Kind, o *unstructured.Unstructured) *sleep {
	once := o.GetAnnotations()[v1alpha1.AnnotationRunOnce] == "true"
	switch {
	case k.is("batch", "CronJob") && (once || r.options.Singletons.CronJobs == v1alpha1.CronJobsSuspend):
		return &sleep{
			field: "suspend", value: true, otherwise: false, annotation: v1alpha1.AnnotationSuspend,
			parse: func(s string) (any, error) { return strconv.ParseBool(s) },
		}
	case k.is("apps", "Deployment") || k.is("apps", "StatefulSet"):
		if once || r.singletons[singleton{k.Kind, o.GetNamespace(), o.GetName()}] {
			return &sleep{
				field: "replicas", value: int64(0), otherwise: int64(1), annotation: v1alpha1.AnnotationReplicas,
				parse: func(s string) (any, error) { return strconv.ParseInt(s, 10, 32) },
			}
		}
	}
	return nil
}

// original is the value that the field has when the object may run. An annotation that no one could have written is none.
func (s *sleep) original(o *unstructured.Unstructured) any {
	if text, ok := o.GetAnnotations()[s.annotation]; ok {
		if v, err := s.parse(text); err == nil {
			return v
		}
	}
	if v, ok := inside(o.Object, "spec")[s.field]; ok {
		return v
	}
	return s.otherwise
}

// asleep reports whether the field is what it is as long as the object must not run, by replumb's doing.
func (s *sleep) asleep(o *unstructured.Unstructured) bool {
	_, marked := o.GetAnnotations()[s.annotation]
	return marked && inside(o.Object, "spec")[s.field] == s.value
}

// suspend keeps copies of singletons from running, until names lead to them. The source's own may be asleep by then.
func (r *Rules) suspend(k Kind, o *unstructured.Unstructured) {
	s := r.sleepOf(k, o)
	if s == nil {
		return
	}
	original := s.original(o)
	within := inside(o.Object, "spec")
	if within == nil {
		return
	}
	if r.options.Awake {
		within[s.field] = original
		annotations := o.GetAnnotations()
		delete(annotations, s.annotation)
		setOrDrop(o, "annotations", annotations)
		return
	}
	within[s.field] = s.value
	setAnnotation(o, s.annotation, fmt.Sprint(original))
}
