package objects

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// PodTemplate is the template of an object's pods, in place, where Deployments have theirs.
func PodTemplate(k ResourceKind, o *unstructured.Unstructured) map[string]any {
	switch {
	case k.Is("", "Pod"):
		return o.Object
	case k.Is("", "PodTemplate"):
		return Inside(o.Object, "template")
	case k.Is("batch", "CronJob"):
		return Inside(o.Object, "spec", "jobTemplate", "spec", "template")
	}
	template := Inside(o.Object, "spec", "template")
	if _, ok := Inside(template, "spec")["containers"].([]any); !ok {
		return nil
	}
	return template
}

// PodSpec is the spec of an object's pods, in place; nil, if it has none.
func PodSpec(k ResourceKind, o *unstructured.Unstructured) map[string]any {
	return Inside(PodTemplate(k, o), "spec")
}

// Containers are those of a pod's spec, of every sort.
func Containers(pod map[string]any) []map[string]any {
	var all []map[string]any
	for _, list := range []string{"initContainers", "containers", "ephemeralContainers"} {
		for _, c := range Slice(pod[list]) {
			if m := Map(c); m != nil {
				all = append(all, m)
			}
		}
	}
	return all
}
