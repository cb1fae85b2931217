package objects

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Map is nil for what is no object. The functions of unstructured find nothing in it.
func Map(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// Slice is nil for what is no list.
func Slice(v any) []any {
	s, _ := v.([]any)
	return s
}

// Inside is the object at a path, not a copy of it; nil if there is none.
func Inside(o map[string]any, path ...string) map[string]any {
	for _, p := range path {
		o = Map(o[p])
	}
	return o
}

// Retain filters a list in place, and takes it away when nothing is left.
func Retain(o map[string]any, list string, wanted func(map[string]any) bool) {
	old := Slice(o[list])
	if old == nil {
		return
	}
	left := make([]any, 0, len(old))
	for _, item := range old {
		if wanted(Map(item)) {
			left = append(left, item)
		}
	}
	if len(left) == 0 {
		delete(o, list)
		return
	}
	o[list] = left
}

// Drop removes a field.
func Drop(o *unstructured.Unstructured, path ...string) {
	unstructured.RemoveNestedField(o.Object, path...)
}

// SetLabel sets one label.
func SetLabel(o *unstructured.Unstructured, name, value string) {
	all := o.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	o.SetLabels(all)
}

// SetAnnotation sets one annotation.
func SetAnnotation(o *unstructured.Unstructured, name, value string) {
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[name] = value
	o.SetAnnotations(all)
}

// SetOrDrop sets labels or annotations, or removes the field if there are none.
func SetOrDrop(o *unstructured.Unstructured, field string, values map[string]string) {
	if len(values) == 0 {
		Drop(o, "metadata", field)
		return
	}
	_ = unstructured.SetNestedStringMap(o.Object, values, "metadata", field) // fails only if metadata were no object
}
