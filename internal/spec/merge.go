package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
)

// FieldChange is a field of a recorded Migration that a run goes by in another way than it was
// recorded.
type FieldChange struct {
	// Field is the path, such as spec.batch.size. Old and New are JSON without secrets, - for none.
	Field, Old, New string
}

func (c FieldChange) String() string { return fmt.Sprintf("%s: %s -> %s", c.Field, c.Old, c.New) }

// Merge is the given Migration with what the recorded one has filled in; both have defaults.
// changes are the settings that differ; the schema's transition rules refuse others, as an API
// server does.
func Merge(recorded, given *v1alpha1.Migration) (effective *v1alpha1.Migration, changes []FieldChange, err error) {
	d := built()
	old, object := untyped(recorded), untyped(given)
	object["status"] = old["status"] // it says what may still change
	for _, e := range d.fixed(object, old) {
		d.fillDefaults(object, old, e.Field)
	}
	var bad field.ErrorList
	for _, e := range d.fixed(object, old) {
		bad = append(bad, d.differs(object, old, e.Field, recorded.Name))
	}
	if err := Refuse(bad); err != nil {
		return nil, nil, err
	}
	effective = given.DeepCopy()
	if effective.Spec, err = typed(object); err != nil {
		return nil, nil, err
	}
	return effective, differences(old, object), nil
}

func (d *definition) fixed(object, old map[string]any) (broken field.ErrorList) {
	without := d.violated(object, nil)
	for _, e := range d.violated(object, old) {
		same := func(o *field.Error) bool { return o.Field == e.Field && o.Detail == e.Detail }
		if !slices.ContainsFunc(without, same) {
			e.Field = strings.ReplaceAll(e.Field, "..", ".")
			broken = append(broken, e)
		}
	}
	return broken
}

// fillDefaults keeps the old value of a field that may be filled in later and is open.
func (d *definition) fillDefaults(object, old map[string]any, path string) {
	_, given := d.at(object, path)
	_, was := d.at(old, path)
	later := d.fixed(old, object)
	if given != nil || was == nil || slices.ContainsFunc(later, func(e *field.Error) bool { return e.Field == path }) {
		return
	}
	_ = unstructured.SetNestedField(object, runtime.DeepCopyJSONValue(was), steps(path)...) // what it is in was found above
}

func (d *definition) differs(object, old map[string]any, path, name string) *field.Error {
	hint := "what moves, and where, cannot be changed once a migration has begun: use its spec, or roll it back and give the new one another name"
	if strings.HasPrefix(path, "spec.mirror.") && path != "spec.mirror.target" {
		hint = "names lead to the mirror, which was made by the recorded spec: use that, or lead them back first, by replumb rollback " + name
	}
	_, now := d.at(object, path)
	_, was := d.at(old, path)
	if path == "spec" {
		return Wrong(path, "names another job than migration "+name+" in the cluster", hint)
	}
	return Wrongf(
		path, hint, "differs from migration %s in the cluster, which has %s instead of %s", name,
		shown(path, was), shown(path, now),
	)
}

// differences ignores spec.desired and spec.paused, which are no settings.
func differences(old, object map[string]any) (changes []FieldChange) {
	was, now := map[string]any{}, map[string]any{}
	flatten("spec", old["spec"], was)
	flatten("spec", object["spec"], now)
	for _, path := range slices.Sorted(maps.Keys(merged(was, now))) {
		if path == "spec.desired" || path == "spec.paused" {
			continue
		}
		if before, after := shown(path, was[path]), shown(path, now[path]); quoted(was[path]) != quoted(now[path]) {
			changes = append(changes, FieldChange{Field: path, Old: before, New: after})
		}
	}
	return changes
}

func merged(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// flatten maps paths to values; a list of plain values is one.
func flatten(path string, value any, into map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			flatten(path+"."+key, item, into)
		}
		return
	case []any:
		if len(v) == 0 {
			break
		}
		if _, ok := v[0].(map[string]any); ok {
			for i, item := range v {
				flatten(fmt.Sprintf("%s[%d]", path, i), item, into)
			}
			return
		}
	}
	into[path] = value
}

func shown(path string, value any) string {
	switch {
	case value == nil:
		return "-"
	case isSecret(path):
		return "(not shown)"
	}
	return quoted(value)
}
