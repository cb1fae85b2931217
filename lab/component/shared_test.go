package component

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

// others are modules that components of the demo have in another version than replumb, for a reason.
var others = map[string]string{
	"coredns google.golang.org/genproto/googleapis/rpc": "CoreDNS asks for a later one; little depends on it",
	"containerd github.com/mdlayher/socket":             "containerd asks for a later one; little depends on it",
	"containerd github.com/cpuguy83/go-md2man/v2":       "nothing of it is compiled",
}

// TestModulesAreShared: what the programs of the demo have of the modules of replumb and the lab is compiled once, which takes the same versions. After
// an upgrade of replumb's modules, raise them in the component: go -C lab/components/NAME get MODULE@VERSION.
func TestModulesAreShared(t *testing.T) {
	root, err := SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	own := versions(t, filepath.Join(root, "lab"))
	for module, version := range versions(t, root) {
		own[module] = version
	}
	for _, component := range []string{"kubernetes", "coredns", "cni", "containerd"} {
		for module, version := range versions(t, filepath.Join(root, "lab", "components", component)) {
			if want := own[module]; want != "" && want != version && others[component+" "+module] == "" {
				t.Errorf("%s has %s %s, and replumb has %s", component, module, version, want)
			}
		}
	}
}

// versions are those of a module's dependencies, as they are replaced.
func versions(t *testing.T, dir string) map[string]string {
	t.Helper()
	file := filepath.Join(dir, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := modfile.Parse(file, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, r := range mod.Require {
		found[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range mod.Replace {
		if _, required := found[r.Old.Path]; required {
			found[r.Old.Path] = r.New.Version
		}
	}
	return found
}

// TestFlagsAreShared: what make compiles replumb with is what its components are compiled with.
func TestFlagsAreShared(t *testing.T) {
	root, err := SourceRoot()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	want := "export GOFLAGS := " + strings.Join(compilerFlags(), " ") + " "
	if !slices.ContainsFunc(strings.Split(string(makefile), "\n"), func(line string) bool { return strings.HasPrefix(line, want) }) {
		t.Errorf("the Makefile has no line %q", want)
	}
}
