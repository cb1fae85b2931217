package backup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/safety/chunklog"
)

func TestPackFillsChunks(t *testing.T) {
	noise := make([]byte, 30<<10)
	_, _ = rand.Read(noise)
	big := line{key: Key{Kind: "Big"}, json: fmt.Appendf(nil, "%q", fmt.Sprintf("%x", noise))}
	small := line{key: Key{Kind: "Small"}, json: []byte(`{"a":1}`)}
	for name, test := range map[string]struct {
		lines []line
		want  int
	}{
		"nothing":               {nil, 0},
		"one":                   {[]line{small}, 1},
		"larger than the limit": {[]line{small, big, small}, 3},
		"many small ones":       {slices.Repeat([]line{small}, 5000), 3},
	} {
		all, err := pack(test.lines, 16<<10)
		if err != nil || len(all) != test.want {
			t.Errorf("%s: %d chunks, %v, want %d", name, len(all), err, test.want)
		}
	}
	noise = make([]byte, 2<<20)
	_, _ = rand.Read(noise)
	_, err := pack([]line{{key: Key{Kind: "Secret", Namespace: "shop", Name: "huge"}, json: noise}}, chunklog.Size)
	var bad *ManifestError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "Secret shop/huge: it is too large") {
		t.Errorf("too large: %v", err)
	}
}

func TestFileNames(t *testing.T) {
	object := func(kind, namespace, name string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"kind": kind}}
		o.SetNamespace(namespace)
		o.SetName(name)
		return o
	}
	var got []string
	for _, f := range nameFiles([]*unstructured.Unstructured{
		object("Service", "a-b", "c"), object("Service", "a", "b-c"), object("ServiceCIDR", "", "x"), object("Node", "", "../../x"),
	}) {
		got = append(got, f.name)
	}
	want := []string{"service-a-b-c.yaml", "service-a-b-c-2.yaml", "servicecidr-x.yaml", "node-.._.._x.yaml"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
