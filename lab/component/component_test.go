package component

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestComponentsExist holds the list of components against the folders there are.
func TestComponentsExist(t *testing.T) {
	root, err := SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range All() {
		src := filepath.Join(root, "lab", "components", c.folder())
		version, err := moduleVersion(src, c.Module)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if !strings.HasPrefix(version, "v") {
			t.Errorf("%s: version is %q", c.Name, version)
		}
		if _, err := os.Stat(filepath.Join(src, "go.sum")); err != nil {
			t.Errorf("%s is not pinned: %v", c.Name, err)
		}
	}
}

// TestNamed asks for some, in another order than that in which they are built, and for one that there is not.
func TestNamed(t *testing.T) {
	all, err := Named()
	if err != nil || slices.ContainsFunc(all, func(c Component) bool { return c.OnDemand }) || len(all) < 10 {
		t.Errorf("no names give %d components, %v", len(all), err)
	}
	if demanded, err := Named("e2e"); err != nil || len(demanded) != 1 || !demanded[0].OnDemand {
		t.Errorf("what is built on demand is %v by its name, %v", demanded, err)
	}
	some, err := Named("calico", "kubernetes")
	if err != nil || len(some) != 2 || some[0].Name != "kubernetes" || some[1].Name != "calico" {
		t.Errorf("two names give %v, %v", some, err)
	}
	if _, err := Named("kubernetes", "kubernets"); err == nil || !strings.Contains(err.Error(), `"kubernets"`) {
		t.Errorf("a name that none has gives %v", err)
	}
}

// TestKey changes one thing at a time: each must lead to a build of its own, and nothing else may.
func TestKey(t *testing.T) {
	src := t.TempDir()
	file := filepath.Join(src, "go.sum")
	set := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	key := func(c Component, version string) string {
		k, err := c.key(src, version)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	c := All()[0]
	set("a")
	first := key(c, "v1.36.3")
	if again := key(c, "v1.36.3"); again != first {
		t.Errorf("key of the same sources is %s, then %s", first, again)
	}
	if other := key(c, "v1.36.4"); other == first {
		t.Error("another version has the same key")
	}
	tagged := c
	tagged.Tags = []string{"x"}
	if key(tagged, "v1.36.3") == first {
		t.Error("other build tags have the same key")
	}
	set("b")
	if key(c, "v1.36.3") == first {
		t.Error("another go.sum has the same key")
	}
}
