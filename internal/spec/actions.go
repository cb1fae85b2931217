package spec

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
)

// NamedAction is a call that a Migration makes, and where in it that stands.
type NamedAction struct {
	Field string
	v1alpha1.Action
}

// Actions are all calls that a Migration makes and waits for, in the order of its fields. They are
// found by type, so that a new kind's are included.
func Actions(m *v1alpha1.MigrationSpec) []NamedAction {
	var all []NamedAction
	each(reflect.ValueOf(m).Elem(), "spec", func(path string, a *v1alpha1.Action) { all = append(all, NamedAction{path, *a}) })
	return all
}

func actionsOf(m *v1alpha1.MigrationSpec) []*v1alpha1.Action {
	var all []*v1alpha1.Action
	each(reflect.ValueOf(m).Elem(), "spec", func(_ string, a *v1alpha1.Action) { all = append(all, a) })
	return all
}

func each(v reflect.Value, path string, visit func(path string, a *v1alpha1.Action)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			each(v.Elem(), path, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			each(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
		}
	case reflect.Struct:
		if action, ok := v.Addr().Interface().(*v1alpha1.Action); ok {
			visit(path, action)
			return
		}
		eachField(v, path, visit)
	}
}

func eachField(v reflect.Value, path string, visit func(path string, a *v1alpha1.Action)) {
	for i := range v.NumField() {
		tag, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch {
		case !v.Type().Field(i).IsExported():
		case tag == "" && strings.Contains(options, "inline"):
			each(v.Field(i), path, visit)
		default:
			each(v.Field(i), path+"."+tag, visit)
		}
	}
}
