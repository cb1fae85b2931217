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

// Actions are all calls that a Migration makes and waits for, in the order of its fields: hooks and the like, not notifiers. They are found by their type, so that
// none is forgotten when another kind of migration gets one.
func Actions(m *v1alpha1.MigrationSpec) []NamedAction {
	var all []NamedAction
	collect(reflect.ValueOf(m).Elem(), "spec", &all)
	return all
}

func collect(v reflect.Value, field string, all *[]NamedAction) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			collect(v.Elem(), field, all)
		}
	case reflect.Slice:
		for i := range v.Len() {
			collect(v.Index(i), fmt.Sprintf("%s[%d]", field, i), all)
		}
	case reflect.Struct:
		if action, ok := v.Interface().(v1alpha1.Action); ok {
			*all = append(*all, NamedAction{field, action})
			return
		}
		collectFields(v, field, all)
	}
}

func collectFields(v reflect.Value, field string, all *[]NamedAction) {
	for i := range v.NumField() {
		tag, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		switch {
		case !v.Type().Field(i).IsExported():
		case tag == "" && strings.Contains(options, "inline"):
			collect(v.Field(i), field, all)
		default:
			collect(v.Field(i), field+"."+tag, all)
		}
	}
}
