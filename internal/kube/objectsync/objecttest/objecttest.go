// Package objecttest makes objects of manifests, for tests.
package objecttest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// KindOf is a Kind without asking: all that tests use is regular.
func KindOf(apiVersion, kind string) objects.ResourceKind {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		panic(err)
	}
	resource := strings.ToLower(kind) + "s"
	switch {
	case strings.HasSuffix(kind, "ss"):
		resource = strings.ToLower(kind) + "es"
	case strings.HasSuffix(kind, "cy"):
		resource = strings.ToLower(kind[:len(kind)-1]) + "ies"
	case kind == "Endpoints":
		resource = "endpoints"
	}
	root := []string{
		"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "StorageClass", "CustomResourceDefinition",
		"ValidatingWebhookConfiguration", "APIService", "IngressClass", "PersistentVolume", "Node", "ValidatingAdmissionPolicy",
		"FlowSchema", "Migration",
	}
	namespaced := true
	for _, r := range root {
		namespaced = namespaced && kind != r
	}
	return objects.ResourceKind{Group: gv.Group, Version: gv.Version, Kind: kind, Resource: resource, Namespaced: namespaced}
}

// Parse reads one object.
func Parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	body, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(body); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}
