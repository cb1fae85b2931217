package spec

import (
	"context"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/deploy/crds"
)

// TestDefinitionIsAccepted validates the definition as an API server does that is to install it:
// defaults fit, and rules compile and stay within the budget of the API server.
func TestDefinitionIsAccepted(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(crds.Migrations, crd); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	crd.Status.StoredVersions = []string{"v1alpha1"}
	in := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, in, nil); err != nil {
		t.Fatal(err)
	}
	for _, e := range crdvalidation.ValidateCustomResourceDefinition(context.Background(), in) {
		t.Error(e)
	}
}
