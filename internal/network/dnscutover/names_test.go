package dnscutover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/golden"
)

// TestPairs reads the objects of two clusters and a spec from testdata/pairs/*.txtar and compares
// which names are found, and what they are led from and to.
func TestPairs(t *testing.T) {
	golden.Run(t, "testdata/pairs/*.txtar", sections)
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	var spec v1alpha1.RedirectSpec
	if err := yaml.UnmarshalStrict(in["spec.yaml"], &spec); err != nil {
		t.Fatal(err)
	}
	source, target := Discover(objects(t, in["source.yaml"])), Discover(objects(t, in["target.yaml"]))
	names, problems := Pair(source, target, spec)
	var found, paired, said bytes.Buffer
	for _, f := range source {
		fmt.Fprintf(&found, "%s tls=%t\n", f.Name, f.TLS)
		for _, p := range f.AskedBy {
			fmt.Fprintf(&found, "  %s: %s\n", p.Object, strings.Join(p.Addresses, ", "))
		}
	}
	for _, n := range names {
		fmt.Fprintf(&paired, "%s %s: %s -> %s (%s %s:%d)\n",
			n.Type, n.Name, strings.Join(n.From, ", "), strings.Join(n.To, ", "), n.Probe.Mode, n.Probe.Path, n.Probe.Port)
	}
	for _, p := range problems {
		kind := "problem"
		if p.Warning {
			kind = "warning"
		}
		fmt.Fprintf(&said, "%s: %s\n  hint: %s\n", kind, p, p.Hint)
	}
	return golden.Sections{"found": found.String, "names": paired.String, "problems": said.String}
}

func objects(t *testing.T, text []byte) []unstructured.Unstructured {
	t.Helper()
	var all []unstructured.Unstructured
	d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			all = append(all, o)
		}
	}
}

// TestRenew: where names lead stays as it was written down, how they are asked for goes by the
// spec.
func TestRenew(t *testing.T) {
	kept := []v1alpha1.RedirectName{
		{
			Name: "a.example.com",
			Type: v1alpha1.RecordA,
			From: []string{"192.0.2.1"},
			To:   []string{"192.0.2.2"},
			Probe: &v1alpha1.RedirectProbe{
				Mode: v1alpha1.ProbeHTTPS, Path: "/",
			},
		},
		{Name: "b.example.com", Probe: &v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeHTTP, Path: "/"}},
	}
	got := Renew(kept, v1alpha1.RedirectSpec{
		Names: []v1alpha1.RedirectName{{Name: "B.example.com.", Probe: &v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeOff}}},
		From:  []string{"203.0.113.1"}, Probe: v1alpha1.RedirectProbe{Path: "/healthz"},
	})
	a, b := got[0], got[1]
	if a.Probe.Path != "/healthz" || a.Probe.Mode != v1alpha1.ProbeHTTPS || a.From[0] != "192.0.2.1" || kept[0].Probe.Path != "/" {
		t.Errorf("got %+v with %+v", a, a.Probe)
	}
	if b.Probe.Mode != v1alpha1.ProbeOff {
		t.Errorf("got %+v", b.Probe)
	}
}

func FuzzDiscover(f *testing.F) {
	f.Add(
		[]byte(
			`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"a"},"spec":{"rules":[{"host":"a.b"}],"tls":[{"hosts":["*.b"]}]}}`,
		),
	)
	f.Add(
		[]byte(`{"apiVersion":"gateway.networking.k8s.io/v1","kind":"HTTPRoute","spec":{"hostnames":["a.b"],"parentRefs":[{"name":"g"}]}}`),
	)
	f.Fuzz(func(t *testing.T, text []byte) {
		o := unstructured.Unstructured{}
		if o.UnmarshalJSON(text) != nil {
			return
		}
		found := Discover([]unstructured.Unstructured{o})
		names, _ := Pair(found, found, v1alpha1.RedirectSpec{})
		if len(names) > 0 {
			t.Errorf("a name that leads to the same on both sides is led: %v", names)
		}
	})
}
