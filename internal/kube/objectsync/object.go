package objectsync

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// asMap is nil for what is no object. The functions of unstructured find nothing in it.
func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func asSlice(v any) []any {
	s, _ := v.([]any)
	return s
}

// inside is the object at a path, not a copy of it; nil if there is none.
func inside(o map[string]any, path ...string) map[string]any {
	for _, p := range path {
		o = asMap(o[p])
	}
	return o
}

// podTemplate is the template of an object's pods, in place, where Deployments have theirs.
func podTemplate(k ResourceKind, o *unstructured.Unstructured) map[string]any {
	switch {
	case k.is("", "Pod"):
		return o.Object
	case k.is("", "PodTemplate"):
		return inside(o.Object, "template")
	case k.is("batch", "CronJob"):
		return inside(o.Object, "spec", "jobTemplate", "spec", "template")
	}
	template := inside(o.Object, "spec", "template")
	if _, ok := inside(template, "spec")["containers"].([]any); !ok {
		return nil
	}
	return template
}

func podSpec(k ResourceKind, o *unstructured.Unstructured) map[string]any {
	return inside(podTemplate(k, o), "spec")
}

func containers(pod map[string]any) []map[string]any {
	var all []map[string]any
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range asSlice(pod[list]) {
			if m := asMap(c); m != nil {
				all = append(all, m)
			}
		}
	}
	return all
}

// retain filters a list in place, and takes it away when nothing is left.
func retain(o map[string]any, list string, wanted func(map[string]any) bool) {
	old := asSlice(o[list])
	if old == nil {
		return
	}
	left := make([]any, 0, len(old))
	for _, item := range old {
		if wanted(asMap(item)) {
			left = append(left, item)
		}
	}
	if len(left) == 0 {
		delete(o, list)
		return
	}
	o[list] = left
}

func drop(o *unstructured.Unstructured, path ...string) {
	unstructured.RemoveNestedField(o.Object, path...)
}

func setLabel(o *unstructured.Unstructured, name, value string) {
	all := o.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	o.SetLabels(all)
}

func setAnnotation(o *unstructured.Unstructured, name, value string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	o.SetAnnotations(all)
}
