package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// pathLike is code that may name a file or a folder, or several with * and {a,b}.
	pathLike = regexp.MustCompile(`^[a-z0-9_.*{},-]+(?:/[A-Za-z0-9_.*{},-]+)*/?$`)
	// upstream is what other repositories call their own.
	upstream = regexp.MustCompile(`^(?:pkg|staging|felix)/`)
	either   = regexp.MustCompile(`^(.*)\{([^}]*)\}(.*)$`)
)

// roots are the folders from which pages of docs/design name paths.
func roots() []string { return []string{".", "internal", "internal/migrations"} }

// resources of Kubernetes that look like paths.
func resources() []string { return []string{"migrations/*", "migrations/status", "nodes/proxy"} }

// tree answers which paths, relative to the repository, a pattern finds, and whether there is a file of some name anywhere.
type tree struct {
	find  func(pattern string) []string
	named func(pattern string) bool
}

// lostPaths are the paths in back-ticks of a page that lead nowhere. A file of Go is one wherever it is said to be; what has no such ending
// is one if it begins with a folder that there is.
func lostPaths(f textFile, in tree) []string {
	var lost []string
	for _, code := range snippets(f) {
		if !pathLike.MatchString(code) || upstream.MatchString(code) || slices.Contains(resources(), code) {
			continue
		}
		first, _, below := strings.Cut(strings.TrimSuffix(code, "/"), "/")
		isGo := strings.HasSuffix(code, ".go")
		known := slices.ContainsFunc(roots(), func(root string) bool { return len(in.find(filepath.Join(root, first))) > 0 })
		switch {
		case isGo && !below:
			if !in.named(code) {
				lost = append(lost, fmt.Sprintf("there is no file %s", code))
			}
		case below && (isGo || known):
			for _, one := range expanded(code) {
				if !slices.ContainsFunc(roots(), func(root string) bool { return len(in.find(filepath.Join(root, one))) > 0 }) {
					lost = append(lost, fmt.Sprintf("there is no %s", one))
				}
			}
		}
	}
	return lost
}

// expanded is a path for each of what stands in braces. NAME stands for any.
func expanded(path string) []string {
	path = strings.ReplaceAll(path, "NAME", "*")
	parts := either.FindStringSubmatch(path)
	if parts == nil {
		return []string{path}
	}
	var all []string
	for one := range strings.SplitSeq(parts[2], ",") {
		all = append(all, parts[1]+one+parts[3])
	}
	return all
}

// TestPathsExist: what pages of docs/design name as a file or a folder is there, from the top, internal or internal/migrations.
func TestPathsExist(t *testing.T) {
	files := map[string]bool{}
	for _, f := range textFiles(t, func(name string) bool { return strings.HasSuffix(name, ".go") }) {
		files[filepath.Base(f.name)] = true
	}
	in := tree{
		find: func(pattern string) []string {
			found, _ := filepath.Glob(filepath.Join("..", pattern)) // a wrong pattern finds nothing
			return found
		},
		named: func(pattern string) bool {
			for file := range files {
				if ok, _ := filepath.Match(pattern, file); ok {
					return true
				}
			}
			return false
		},
	}
	pages, err := os.ReadDir("design")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		text, err := readFile("docs/design/" + page.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range lostPaths(textFile{page.Name(), text}, in) {
			t.Errorf("docs/design/%s: %s", page.Name(), p)
		}
	}
}

// TestLostPaths shows which are found.
func TestLostPaths(t *testing.T) {
	there := []string{"lab", "internal/kube", "internal/kube/etcd", "internal/migrations/cni", "internal/migrations/cni/plan.go", "internal/nodes"}
	in := tree{
		find: func(pattern string) (found []string) {
			for _, path := range there {
				if ok, _ := filepath.Match(pattern, path); ok {
					found = append(found, path)
				}
			}
			return found
		},
		named: func(pattern string) bool { return pattern == "plan.go" },
	}
	for text, want := range map[string]int{
		"`internal/kube/etcd`, `kube/etcd`, `kube/`, `lab`":              0,
		"`cni/plan.go`, `plan.go`, `internal/migrations/NAME`":           0,
		"`pkg/proxy/proxier.go`, `nodes/proxy`, `apps/v1`, `/kube/none`": 0,
		"```\ncni/none.go\n```":                                          1,
		"`kube/lease`":                                                   1,
		"`gone/hop.go`":                                                  1,
		"`hop.go`":                                                       1,
		"`kube/{etcd,lease}`":                                            1,
		"`kube/l*`":                                                      1,
	} {
		if got := lostPaths(textFile{"x.md", text}, in); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
