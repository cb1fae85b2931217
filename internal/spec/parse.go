package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Parse reads a Migration strictly: fields it does not know are errors.
func Parse(manifest []byte) (*v1alpha1.Migration, error) {
	asJSON, err := yaml.YAMLToJSONStrict(manifest)
	if err != nil {
		return nil, &Error{Field: "file", Problem: err.Error(), Hint: "the file must hold one Migration in YAML or JSON"}
	}
	m := &v1alpha1.Migration{}
	strict, err := kjson.UnmarshalStrict(asJSON, m)
	if err != nil {
		return nil, wrongType(err)
	}
	if len(strict) > 0 {
		return nil, unknownField(strict[0])
	}
	if m.APIVersion != v1alpha1.GroupVersion.String() || m.Kind != "Migration" {
		return nil, &Error{
			Field:   "apiVersion, kind",
			Problem: fmt.Sprintf("%q, %q is not a Migration", m.APIVersion, m.Kind),
			Hint:    "write apiVersion: " + v1alpha1.GroupVersion.String() + " and kind: Migration",
		}
	}
	return m, nil
}

// wrongType says which field holds something of another kind. YAML reads an Off, On, Yes or No without quotes as true or
// false, which people cannot guess.
func wrongType(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return &Error{Field: "file", Problem: err.Error(), Hint: "the folder examples has a file for each kind of migration"}
	}
	field := wrong.Field
	problem := fmt.Sprintf("takes no %s", wrong.Value)
	hint := "the folder examples has a file for each kind of migration"
	if wrong.Value == "bool" && wrong.Type.Kind() == reflect.String {
		hint = `YAML takes Off, On, Yes and No for true and false: put the value in quotes`
	}
	return &Error{Field: field, Problem: problem, Hint: hint}
}

func unknownField(err error) error {
	var field kjson.FieldError
	if errors.As(err, &field) {
		return &Error{
			Field: field.FieldPath(), Problem: err.Error(),
			Hint: "remove the field or correct its name; replumb does not ignore what it does not know",
		}
	}
	return &Error{Field: "file", Problem: err.Error(), Hint: "remove the field or correct its name"}
}
