package crds

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "note the hash of a revision that is new")

// revisions has a line for each schema that there was: the definition, its revision, and the hash of its schema.
const revisions = "testdata/revisions.txt"

// TestRevisionIsRaised fails when a schema differs from what its revision stands for. Then raise replumb.dev/schema-revision on the API
// type, generate, and run this test with -update. Builds go by the revision to leave a definition alone that is newer than theirs.
func TestRevisionIsRaised(t *testing.T) {
	known := read(t)
	for _, manifest := range [][]byte{Migrations, NodeReports} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(manifest, crd); err != nil {
			t.Fatal(err)
		}
		key := crd.Name + " " + crd.Annotations["replumb.dev/schema-revision"]
		hash := hashOf(t, crd)
		switch was, noted := known[key]; {
		case was == hash:
		case noted:
			t.Errorf("the schema of revision %s has changed: raise its revision", key)
		case *update:
			note(t, key+" "+hash)
		default:
			t.Errorf("revision %s is new: run go test ./deploy/crds -update", key)
		}
	}
}

func read(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open(revisions)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	known := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 {
			known[fields[0]+" "+fields[1]] = fields[2]
		}
	}
	return known
}

func note(t *testing.T, line string) {
	t.Helper()
	f, err := os.OpenFile(revisions, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(f, line); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// hashOf is that of the schema without its descriptions: other words for the same fields are no other schema.
func hashOf(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) string {
	t.Helper()
	body, err := json.Marshal(crd.Spec)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &tree); err != nil {
		t.Fatal(err)
	}
	if body, err = json.Marshal(plain(tree)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(body))[:16]
}

// plain leaves descriptions out. A field of that name has no text.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, item := range v {
			if _, text := item.(string); text && key == "description" {
				delete(v, key)
				continue
			}
			v[key] = plain(item)
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return value
}
