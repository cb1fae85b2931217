package copyrules

import (
	"fmt"
	"maps"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/spec"
)

// transform is a compiled v1alpha1.Transform.
type transform struct {
	v1alpha1.Transform

	field    string
	selector labels.Selector
	patch    jsonpatch.Patch
}

func readTransform(field string, t v1alpha1.Transform) (transform, error) {
	compiled := transform{Transform: t, field: field}
	for name, patterns := range map[string][]string{".kinds": t.Kinds, ".namespaces": t.Namespaces, ".names": t.Names} {
		if err := validatePatterns(field+name, patterns); err != nil {
			return compiled, err
		}
	}
	for name, swaps := range map[string][]v1alpha1.Swap{".hosts": t.Hosts, ".storageClasses": t.StorageClasses} {
		for i, s := range swaps {
			if s.From == "" || s.To == "" {
				return compiled, &spec.Error{
					Field: fmt.Sprintf("%s%s[%d]", field, name, i), Problem: "lacks from or to", Hint: "write both",
				}
			}
		}
	}
	if t.Replicas != nil && *t.Replicas < 0 {
		return compiled, &spec.Error{Field: field + ".replicas", Problem: "is negative", Hint: "0 is the least"}
	}
	var err error
	if compiled.selector, err = selector(field+".selector", t.Selector); err != nil {
		return compiled, err
	}
	if t.JSONPatch != "" {
		if compiled.patch, err = readPatch(t.JSONPatch); err != nil {
			return compiled, &spec.Error{
				Field: field + ".jsonPatch", Problem: err.Error(),
				Hint: `write a list of operations (RFC 6902) such as [{"op": "remove", "path": "/spec/loadBalancerIP"}]`,
			}
		}
	}
	return compiled, nil
}

// readPatch reads operations, as JSON or YAML, and refuses those that could be done to nothing.
func readPatch(text string) (jsonpatch.Patch, error) {
	body, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	patch, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, fmt.Errorf("is no list of operations: %w", err)
	}
	for i, op := range patch {
		if err := validateOperation(i, op); err != nil {
			return nil, err
		}
	}
	return patch, nil
}

func validateOperation(i int, op jsonpatch.Operation) error {
	kind := op.Kind()
	if !slices.Contains([]string{"add", "remove", "replace", "move", "copy", "test"}, kind) {
		return fmt.Errorf("operation %d is %q, which is not known", i, kind)
	}
	path, err := op.Path()
	if err != nil || (path != "" && path[0] != '/') {
		return fmt.Errorf("operation %d has no path that begins with /", i)
	}
	if _, err := op.From(); err != nil && (kind == "move" || kind == "copy") {
		return fmt.Errorf("operation %d has no from", i)
	}
	if _, has := op["value"]; !has && (kind == "add" || kind == "replace" || kind == "test") {
		return fmt.Errorf("operation %d has no value", i)
	}
	return nil
}

func (t *transform) about(k objects.ResourceKind, o *unstructured.Unstructured) bool {
	return (len(t.Kinds) == 0 || matchesAny(t.Kinds, k.String())) &&
		(len(t.Namespaces) == 0 || matchesAny(t.Namespaces, o.GetNamespace())) &&
		(len(t.Names) == 0 || matchesAny(t.Names, o.GetName())) &&
		(t.selector == nil || t.selector.Matches(labels.Set(o.GetLabels())))
}

func (t *transform) apply(k objects.ResourceKind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if !t.about(k, o) {
		return o, nil
	}
	swapHosts(k, o, t.Hosts)
	swapClasses(k, o, t.StorageClasses)
	if len(t.Annotations)+len(t.RemoveAnnotations) > 0 {
		objects.SetOrDrop(o, "annotations", merged(o.GetAnnotations(), t.Annotations, t.RemoveAnnotations))
	}
	if len(t.Labels)+len(t.RemoveLabels) > 0 {
		objects.SetOrDrop(o, "labels", merged(o.GetLabels(), t.Labels, t.RemoveLabels))
	}
	if t.Replicas != nil && k.Group == "apps" && slices.Contains([]string{"Deployment", "StatefulSet", "ReplicaSet"}, k.Kind) {
		if err := unstructured.SetNestedField(o.Object, int64(*t.Replicas), "spec", "replicas"); err != nil {
			return nil, fmt.Errorf("%s.replicas: %w", t.field, err)
		}
	}
	if t.patch == nil {
		return o, nil
	}
	return t.patched(k, o)
}

func (t *transform) patched(k objects.ResourceKind, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	wrong := func(err error) error {
		if k.IsSecret() {
			return fmt.Errorf("%s.jsonPatch does not apply", t.field) // why could tell of values
		}
		return fmt.Errorf("%s.jsonPatch does not apply: %w", t.field, err)
	}
	body, err := json.Marshal(o.Object)
	if err != nil {
		return nil, wrong(err)
	}
	if body, err = t.patch.Apply(body); err != nil {
		return nil, wrong(err)
	}
	changed := &unstructured.Unstructured{Object: map[string]any{}}
	if err := json.Unmarshal(body, &changed.Object); err != nil {
		return nil, wrong(err)
	}
	if changed.GetKind() != o.GetKind() || changed.GetName() != o.GetName() || changed.GetNamespace() != o.GetNamespace() {
		return nil, fmt.Errorf("%s.jsonPatch gives it another name or kind", t.field)
	}
	return changed, nil
}

func merged(have, set map[string]string, remove []string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, have)
	maps.Copy(all, set)
	for _, name := range remove {
		delete(all, name)
	}
	return all
}

func swapClasses(k objects.ResourceKind, o *unstructured.Unstructured, swaps []v1alpha1.Swap) {
	var claims []map[string]any
	if k.Is("", "PersistentVolumeClaim") {
		claims = append(claims, objects.Inside(o.Object, "spec"))
	}
	for _, t := range objects.Slice(objects.Inside(o.Object, "spec")["volumeClaimTemplates"]) {
		claims = append(claims, objects.Inside(objects.Map(t), "spec"))
	}
	for _, v := range objects.Slice(objects.PodSpec(k, o)["volumes"]) {
		claims = append(claims, objects.Inside(objects.Map(v), "ephemeral", "volumeClaimTemplate", "spec"))
	}
	for _, claim := range claims {
		for _, s := range swaps {
			if claim["storageClassName"] == s.From {
				claim["storageClassName"] = s.To
				break
			}
		}
	}
}
