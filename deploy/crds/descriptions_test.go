package crds

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestDescriptionsNameFieldsAsUsersDo: kubectl explain shows what is written above a field in Go, whose name there begins with a capital.
func TestDescriptionsNameFieldsAsUsersDo(t *testing.T) {
	for _, manifest := range [][]byte{Migrations, NodeReports} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
			t.Fatal(err)
		}
		for i := range crd.Spec.Versions {
			fields(crd.Spec.Versions[i].Schema.OpenAPIV3Schema, "", func(path, name, description string) {
				first, _, _ := strings.Cut(description, " ")
				kubernetes := path == ".apiVersion" || path == ".kind" // which describes these itself
				if word := strings.TrimRight(first, ",.:"); !kubernetes && word != name && strings.EqualFold(word, name) {
					t.Errorf("%s%s: its description begins with %s", crd.Name, path, word)
				}
			})
		}
	}
}

// fields calls look with each field below a schema.
func fields(s *apiextensionsv1.JSONSchemaProps, path string, look func(path, name, description string)) {
	for name, field := range s.Properties {
		look(path+"."+name, name, field.Description)
		fields(&field, path+"."+name, look)
	}
	if s.Items != nil && s.Items.Schema != nil {
		fields(s.Items.Schema, path+"[]", look)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		fields(s.AdditionalProperties.Schema, path+"{}", look)
	}
}
