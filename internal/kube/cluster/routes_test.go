package cluster

import (
	"slices"
	"testing"
)

func TestRoutesLeadToServices(t *testing.T) {
	found := &Inspection{}
	for kind, body := range map[string]string{
		"IngressRoute": `{"items":[{"metadata":{"namespace":"shop","name":"web"},"spec":{"routes":[{"match":"x","middlewares":[{"name":"strip"}],
			"services":[{"name":"cart","port":80},{"name":"weighted","kind":"TraefikService"},{"name":"pay","namespace":"bank","kind":"Service"}]}]}}]}`,
		"TraefikService": `{"items":[{"metadata":{"namespace":"shop","name":"split"},"spec":{"mirroring":{"name":"front","mirrors":[{"name":"shadow"}]}}}]}`,
		"HTTPRoute": `{"items":[{"metadata":{"namespace":"shop","name":"web"},"spec":{"parentRefs":[{"name":"gateway"}],"rules":[{"backendRefs":[{"name":"api"}],
			"filters":[{"requestMirror":{"backendRef":{"name":"copy"}}}]}]}}]}`,
	} {
		if err := found.TakeRoutes(kind, []byte(body)); err != nil {
			t.Fatal(err)
		}
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
