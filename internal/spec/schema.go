package spec

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
)

// definition applies Migration's schema as an API server does, without one.
type definition struct {
	schema *schema.Structural
	values validation.SchemaValidator
	rules  *cel.Validator
}

// built is immutable, like a compiled regular expression.
var built = sync.OnceValue(func() *definition { //nolint:gochecknoglobals // a constant that takes a moment to compile
	d, err := compile(crds.Migrations)
	if err != nil {
		panic(fmt.Sprintf("the built-in definition of Migration: %v", err)) // it is part of the binary, and a test compiles it
	}
	return d
})

func compile(manifest []byte) (*definition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
		return nil, err
	}
	props := &apiextensions.JSONSchemaProps{}
	of := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(of, props, nil); err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return &definition{schema: structural, values: values, rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

func (d *definition) unknown(object map[string]any) []string {
	paths := pruning.PruneWithOptions(
		runtime.DeepCopyJSON(object), d.schema, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
	)
	slices.Sort(paths)
	return paths
}

func (d *definition) complete(object map[string]any) { defaulting.Default(object, d.schema) }

func (d *definition) check(object map[string]any) field.ErrorList {
	all := validation.ValidateCustomResource(nil, object, d.values)
	all = append(all, listtype.ValidateListSetsAndMaps(nil, d.schema, object)...)
	// API servers skip rules after a wrong value; here only types have to be right.
	if !slices.ContainsFunc(all, func(e *field.Error) bool { return e.Type == field.ErrorTypeTypeInvalid }) {
		all = append(all, d.violated(object, nil)...)
	}
	var explained field.ErrorList
	for _, e := range all {
		mistyped := func(o *field.Error) bool { return o.Type == field.ErrorTypeTypeInvalid && o.Field == e.Field }
		if e.Type == field.ErrorTypeTypeInvalid || !slices.ContainsFunc(all, mistyped) {
			explained = add(explained, d.explain(object, e))
		}
	}
	for _, e := range explained {
		if advice, is := strings.CutPrefix(e.Detail, evaluation); is { // nothing else is wrong in it
			e.Detail = "cannot be checked; " + advice
		}
	}
	return explained
}

// violated are the rules that an object breaks, as a successor if old is given.
func (d *definition) violated(object, old map[string]any) field.ErrorList {
	var before any
	if old != nil {
		before = old
	}
	all, _ := d.rules.Validate(context.Background(), nil, d.schema, object, before, celconfig.RuntimeCELCostBudget)
	return all
}

// add drops a second error of the same field.
func add(all field.ErrorList, e *field.Error) field.ErrorList {
	for _, other := range all {
		if other.Field == e.Field &&
			(other.Detail == e.Detail || strings.Contains(e.Detail, evaluation) || strings.HasPrefix(other.Detail, missing)) {
			return all
		}
	}
	return append(all, e)
}

func untyped(m *v1alpha1.Migration) map[string]any {
	body, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a Migration that is no JSON: %v", err)) // its types have no value that is not
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(body, &object); err != nil {
		panic(fmt.Sprintf("a Migration that is no JSON: %v", err))
	}
	return object
}

func typed(object map[string]any) (v1alpha1.MigrationSpec, error) {
	var s v1alpha1.MigrationSpec
	body, err := json.Marshal(object["spec"])
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}
