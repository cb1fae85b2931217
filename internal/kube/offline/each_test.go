package offline

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func anyVersion(schema.GroupResource) string { return "" }

// TestCollections: every object comes once, also one that was asked for by its name where the list
// was refused.
func TestCollections(t *testing.T) {
	a, err := Read(bytes.NewReader(written(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range a.Collections(anyVersion) {
		for _, o := range c.Objects {
			name, err := newObject(o)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c.Kind+" "+name.namespace+"/"+name.name)
		}
	}
	if have, want := strings.Join(got, ", "), "Namespace /shop, Node /one, Pod back/c, Pod shop/a, Pod shop/b"; have != want {
		t.Errorf("got %s, want %s", have, want)
	}
}

func TestCollectionsOfOneVersion(t *testing.T) {
	a := &Archive{objects: newObjects()}
	for _, version := range []string{"v1beta1", "v1", "v2alpha1"} {
		p := &page{Group: "x.example", Version: version, Resource: "things", Kind: "Thing", Items: items(`{"metadata":{"name":"a"}}`)}
		if err := a.objects.take(p); err != nil {
			t.Fatal(err)
		}
	}
	for preferred, want := range map[string]string{"": "v1", "v1beta1": "v1beta1", "v3": "v1"} {
		all := a.Collections(func(schema.GroupResource) string { return preferred })
		if len(all) != 1 || all[0].Version != want || len(all[0].Objects) != 1 {
			t.Errorf("preferring %q: %+v, want one of %s", preferred, all, want)
		}
	}
}

func TestKubelet(t *testing.T) {
	a := &Archive{answers: answers{Paths: map[string]answer{
		"/api/v1/nodes/a/proxy/configz": {Code: 200, Body: `{"kubeletconfig":{}}`},
		"/api/v1/nodes/b/proxy/configz": {Code: 503, Body: `{}`},
	}}}
	for node, want := range map[string]json.RawMessage{"a": json.RawMessage(`{"kubeletconfig":{}}`), "b": nil, "c": nil} {
		if got := a.Kubelet(node); !bytes.Equal(got, want) {
			t.Errorf("node %s: %s, want %s", node, got, want)
		}
	}
}
