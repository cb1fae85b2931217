package pull

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func TestReferences(t *testing.T) {
	if got := (Image{Name: "i"}).References(); got != nil {
		t.Errorf("without Secrets: %v", got)
	}
	want := []corev1.LocalObjectReference{{Name: "b"}, {Name: "a"}}
	if got := (Image{Name: "i", Secrets: []string{"b", "a"}}).References(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// server is an API server that answers for each Secret with a status. asked are the requests.
func server(t *testing.T, answers map[string]int) (c *cluster.Cluster, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		first, _, _ := strings.Cut(r.Header.Get("Accept"), ",") // which API servers know, so that they never come to the others
		if !strings.Contains(first, ";as=PartialObjectMetadata;") {
			t.Errorf("%s %s asks for %s: more than metadata", r.Method, r.URL.Path, first)
		}
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answers[name])
		if answers[name] == http.StatusOK {
			fmt.Fprintf(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": %q}}`, name)
			return
		}
		reasons := map[int]string{http.StatusNotFound: "NotFound", http.StatusForbidden: "Forbidden"}
		fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": %q, "code": %d, "message": "no"}`,
			reasons[answers[name]], answers[name])
	}))
	t.Cleanup(s.Close)
	c, err := cluster.Connect(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c, asked
}

// TestAbsent: what is not there is found, what the user may not see is passed over, and no more
// than metadata is asked for.
func TestAbsent(t *testing.T) {
	c, asked := server(t, map[string]int{
		"there": http.StatusOK, "missing": http.StatusNotFound, "hidden": http.StatusForbidden, "broken": http.StatusTeapot,
	})
	got, err := Image{Name: "i", Secrets: []string{"there", "missing", "hidden"}}.Absent(t.Context(), c)
	want := findings.Failed(
		"Secret replumb-system/missing",
		"secret replumb-system/missing, which spec.imagePullSecrets names, does not exist",
	)
	if err != nil || !slices.Equal(got, []findings.Result{want}) {
		t.Errorf("found %v, %v", got, err)
	}
	const secrets = "GET /api/v1/namespaces/replumb-system/secrets/"
	if want := []string{secrets + "there", secrets + "missing", secrets + "hidden"}; !slices.Equal(*asked, want) {
		t.Errorf("asked %q", *asked)
	}
	if _, err := (Image{Name: "i", Secrets: []string{"broken"}}).Absent(t.Context(), c); err == nil ||
		!strings.HasPrefix(err.Error(), "secret replumb-system/broken: ") {
		t.Errorf("got %v", err)
	}
	for _, none := range []Image{{}, {Name: "i"}, {Secrets: []string{"missing"}}} {
		*asked = nil
		if got, err := none.Absent(t.Context(), c); len(got) != 1 || got[0].Outcome != findings.Skipped || err != nil || len(*asked) > 0 {
			t.Errorf("%+v: found %v, %v, asked %q", none, got, err, *asked)
		}
	}
}

// TestNeeded: pods that have to run need an image, and the Secrets that are named.
func TestNeeded(t *testing.T) {
	c, _ := server(t, map[string]int{"missing": http.StatusNotFound})
	for says, i := range map[string]Image{
		"spec.image is empty":   {Secrets: []string{"missing"}},
		"spec.imagePullSecrets": {Name: "i", Secrets: []string{"missing"}},
	} {
		got, err := i.Needed(t.Context(), c, ", or do without")
		if err != nil || len(got) != 1 || got[0].Outcome != findings.Fail || !strings.Contains(got[0].Message, says) {
			t.Errorf("%+v: found %v, %v", i, got, err)
		}
	}
}

// TestOr: a Migration that names an image of its own, and no Secrets, may still need those that
// replumb itself was pulled with.
func TestOr(t *testing.T) {
	own := Image{Name: "registry/replumb:v1", Secrets: []string{"registry"}}
	for name, tt := range map[string]struct{ given, want Image }{
		"nothing":  {Image{}, own},
		"an image": {Image{Name: "other"}, Image{Name: "other", Secrets: []string{"registry"}}},
		"Secrets":  {Image{Secrets: []string{"a", "b"}}, Image{Name: "registry/replumb:v1", Secrets: []string{"a", "b"}}},
		"both":     {Image{Name: "other", Secrets: []string{"a"}}, Image{Name: "other", Secrets: []string{"a"}}},
	} {
		if got := tt.given.Or(own); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
	if got := (Image{Name: "alone"}).Or(Image{}); got.Name != "alone" || got.References() != nil {
		t.Errorf("without another one: %+v", got)
	}
}
