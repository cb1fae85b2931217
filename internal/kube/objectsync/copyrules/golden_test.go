package copyrules

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
	"github.com/replumb/replumb/internal/testing/golden"
)

// TestRules takes the objects in each of testdata/rules/*.txtar by the rules there, and compares
// what comes out.
func TestRules(t *testing.T) {
	golden.Run(t, "testdata/rules/*.txtar", sections)
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	o := Options{Migration: "m"}
	if err := yaml.UnmarshalStrict(in["options.yaml"], &o); err != nil {
		t.Fatal(err)
	}
	o.Credentials = map[v1alpha1.SecretReference]*corev1.Secret{
		{Namespace: "ops", Name: "mirror"}: {Data: map[string][]byte{
			corev1.DockerConfigJsonKey: []byte(`{"auths": {"https://registry.mirror.example.com": {"auth": "bWlycm9yOnNlY3JldA=="}}}`),
		}},
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, text := range strings.Split(string(in["in.yaml"]), "\n---\n") {
		out.WriteString(taken(t, r, text))
	}
	return golden.Sections{"out": out.String}
}

// taken is the copy of an object as YAML, or why there is none. The rules must leave the object
// itself alone, and a copy of the copy must be the copy.
func taken(t *testing.T, r *Rules, text string) string {
	t.Helper()
	o := objecttest.Parse(t, text)
	k := objecttest.KindOf(o.GetAPIVersion(), o.GetKind())
	before, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	out, why, err := r.Take(k, o)
	if after, _ := json.Marshal(o.Object); string(after) != string(before) {
		t.Errorf("%s is changed to %s", before, after)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("%s: error: %v\n", objects.RefOf(k, o), err)
	case why != "":
		return fmt.Sprintf("%s: %s\n", objects.RefOf(k, o), why)
	}
	if diffs := r.Differences(k, out, out); len(diffs) > 0 {
		t.Errorf("%s differs from itself: %v", objects.RefOf(k, o), diffs)
	}
	annotations := out.GetAnnotations()
	if annotations[v1alpha1.AnnotationCopied] == "" {
		t.Errorf("%s does not tell what it is a copy of", objects.RefOf(k, o))
	}
	delete(annotations, v1alpha1.AnnotationCopied)
	objects.SetOrDrop(out, "annotations", annotations)
	body, err := yaml.Marshal(out.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(body) + "---\n"
}
