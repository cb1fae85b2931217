package replumb

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const module = "github.com/replumb/replumb"

// importRule is a rule of depguard, as .golangci.yml has them.
type importRule struct {
	Files []string `json:"files"`
	Allow []string `json:"allow"`
	Deny  []struct {
		Pkg string `json:"pkg"`
	} `json:"deny"`
}

// layer reports whether the rule is about what a room may import of replumb, and not about other
// people's packages.
func (r importRule) layer() bool {
	return slices.ContainsFunc(r.Deny, func(d struct {
		Pkg string `json:"pkg"`
	},
	) bool {
		return d.Pkg == module
	})
}

// covers reports whether the rule is about a file, named by its path in the repository.
func (r importRule) covers(file string) bool {
	return slices.ContainsFunc(r.Files, func(pattern string) bool {
		pattern = strings.TrimPrefix(pattern, "**/")
		if room, ok := strings.CutSuffix(pattern, "/**"); ok {
			return strings.HasPrefix(file, room+"/")
		}
		room, ok := strings.CutSuffix(pattern, "/*.go")
		return ok && path.Dir(file) == room
	})
}

// allows reports whether the rule lets its room import a package, as depguard decides it: the
// longer pattern wins.
func (r importRule) allows(pkg string) bool {
	allowed, denied := 0, 0
	match := func(longest *int, pattern string) {
		exact, whole := strings.CutSuffix(pattern, "$")
		if (whole && pkg == exact) || (!whole && strings.HasPrefix(pkg, pattern)) {
			*longest = max(*longest, len(pattern))
		}
	}
	for _, pattern := range r.Allow {
		match(&allowed, pattern)
	}
	for _, d := range r.Deny {
		match(&denied, d.Pkg)
	}
	return denied == 0 || allowed > denied
}

func importRules(t *testing.T) map[string]importRule {
	t.Helper()
	data, err := os.ReadFile(".golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]importRule `json:"rules"`
				} `json:"depguard"`
			} `json:"settings"`
		} `json:"linters"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		t.Fatal(err)
	}
	layers := config.Linters.Settings.Depguard.Rules
	for name, r := range layers {
		if !r.layer() {
			delete(layers, name)
		}
	}
	return layers
}

// layerOf is the one rule of a file.
func layerOf(rules map[string]importRule, file string) (name string, others []string) {
	var all []string
	for n, r := range rules {
		if r.covers(file) {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return "", nil
	}
	return all[0], all[1:]
}

// TestImports holds every package to the rule of its room: there is exactly one for each file of
// the product.
func TestImports(t *testing.T) {
	rules := importRules(t)
	used := map[string]bool{}
	for _, file := range sources(t) {
		name, others := layerOf(rules, file)
		if name == "" || len(others) > 0 {
			t.Errorf("%s: covered by import rules %q of .golangci.yml; want exactly one", file, append(others, name))
			continue
		}
		used[name] = true
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range f.Imports {
			if pkg, _ := strconv.Unquote(spec.Path.Value); !rules[name].allows(pkg) {
				t.Errorf("%s: imports %s, which rule %s of .golangci.yml does not allow", file, pkg, name)
			}
		}
	}
	for name := range rules {
		if !used[name] {
			t.Errorf("rule %s of .golangci.yml covers no file", name)
		}
	}
}

// TestNothingInTheClusterCalls holds what replumb runs in a cluster, where it reads Migrations that
// others may write, to packages that cannot run programs or post to URLs that a Migration names.
func TestNothingInTheClusterCalls(t *testing.T) {
	seen := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, file := range sources(t) {
			if path.Dir(file) != dir || strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range f.Imports {
				if pkg, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(pkg, module+"/") {
					visit(strings.TrimPrefix(pkg, module+"/"))
				}
			}
		}
	}
	for _, dir := range []string{
		"internal/verify/agent", "internal/verify/connectivity/testpod", "internal/network/nodecleanup", "internal/network/bridge",
		"internal/network/overlap",
	} {
		visit(dir)
		if len(seen) < 2 {
			t.Errorf("%s has no files, or imports nothing", dir)
		}
	}
	if seen["internal/callout"] {
		t.Error("what runs in the cluster imports internal/callout")
	}
}

// TestImportRules shows that the rules refuse what they are for.
func TestImportRules(t *testing.T) {
	rules := importRules(t)
	for file, pkg := range map[string]string{
		"internal/migrations/cni/job.go":       module + "/internal/migrations/podcidr",
		"internal/engine/run.go":               module + "/api/v1alpha1",
		"internal/engine/plan.go":              "k8s.io/api/core/v1",
		"internal/kube/cluster/snapshot.go":    module + "/internal/migrations/cni",
		"internal/network/bridge/bridge.go":    module + "/internal/verify/probe",
		"internal/verify/probe/probe.go":       module + "/internal/cli",
		"internal/migration/job.go":            module + "/internal/migrations/nodes",
		"internal/migrations/nodes/plan.go":    module + "/lab",
		"internal/migrations/mirror/steps.go":  module + "/internal/reporting/terminal",
		"internal/reporting/terminal/event.go": module + "/internal/cli",
	} {
		if name, _ := layerOf(rules, file); name == "" || rules[name].allows(pkg) {
			t.Errorf("rule %q lets %s import %s", name, file, pkg)
		}
	}
	if name, _ := layerOf(rules, "internal/attic/box.go"); name != "" {
		t.Errorf("rule %s covers a folder that does not exist", name)
	}
}

// sources are the Go files of the product.
func sources(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, root := range []string{"api", "cmd", "internal"} {
		files = append(files, filesUnder(t, root, ".go")...)
	}
	return files
}

// filesUnder are the files in a folder, and in those below it, that end in one of some extensions.
// Built and hidden files are left out.
func filesUnder(t *testing.T, root string, extensions ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		file = filepath.ToSlash(file)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (file == "bin" || file == "build" || len(file) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !d.IsDir() && slices.Contains(extensions, path.Ext(file)):
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
