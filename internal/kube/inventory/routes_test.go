package inventory

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// custom reads an object of a kind that others define.
func custom(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestRoutesLeadToServices(t *testing.T) {
	found := &Scan{}
	for _, text := range []string{
		`{kind: IngressRoute, metadata: {namespace: shop, name: web}, spec: {routes: [{match: x, middlewares: [{name: strip}],
			services: [{name: cart, port: 80}, {name: weighted, kind: TraefikService}, {name: pay, namespace: bank, kind: Service}]}]}}`,
		`{kind: TraefikService, metadata: {namespace: shop, name: split}, spec: {mirroring: {name: front, mirrors: [{name: shadow}]}}}`,
		`{kind: HTTPRoute, metadata: {namespace: shop, name: web}, spec: {parentRefs: [{name: gateway}], rules: [{backendRefs: [{name: api}],
			filters: [{requestMirror: {backendRef: {name: copy}}}]}]}}`,
	} {
		found.takeRoute(custom(t, text))
	}
	var got []string
	for _, r := range found.Routes {
		got = append(got, r.Service.String())
	}
	slices.Sort(got)
	want := []string{"bank/pay", "shop/api", "shop/cart", "shop/copy", "shop/front", "shop/shadow"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
