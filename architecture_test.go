package replumb

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
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

// layer reports whether the rule is about what a room may import of replumb, and not about other people's packages.
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

// allows reports whether the rule lets its room import a package, as depguard decides it: the longer pattern wins.
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

// TestImports holds every package to the rule of its room: there is exactly one for each file of the product.
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

// TestNothingInTheClusterCalls holds what replumb runs in a cluster, where it reads Migrations that others may write, to packages that
// cannot run programs or post to URLs that a Migration names.
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

// filesUnder are the files in a folder, and in those below it, that end in one of some extensions. What is built and hidden is left out.
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

// plainer says what to write in place of words that readers had to guess at.
var plainer = map[string]string{
	"afresh":    "again",
	"anew":      "again, or recreate",
	"anybody":   "any client, or another name of who is meant",
	"astray":    "outside",
	"aught":     "anything",
	"burden":    "stale reference",
	"burdens":   "stale references",
	"crew":      "agents",
	"enlist":    "add, or register",
	"forth":     "forward",
	"heir":      "replacement",
	"hush":      "stop, or silence",
	"keepsake":  "saved node",
	"keepsakes": "saved nodes",
	"mend":      "repair, fix, or correct",
	"mended":    "repaired, fixed, or corrected",
	"mending":   "repairing, fixing, or correcting",
	"mends":     "repairs, fixes, or corrects",
	"muster":    "start, or collect",
	"nobody":    "no client, no answer, or another name of what is missing",
	"party":     "the name of who is meant: client, agent, side",
	"rearguard": "the last check",
	"somebody":  "another client, or another name of who is meant",
	"vanguard":  "reconnect probe",
	"whoever":   "the name of who is meant: user, client, process",
	"whomever":  "the name of who is meant: user, client, process",
	"whosoever": "the name of who is meant: user, client, process",
}

// plainerInProduct is for words that mislead in the product's code, and not in sentences of tests and documents.
var plainerInProduct = map[string]string{
	"told": "reported, or who learns what",
}

// unplainFiles may have any word, for the reason that is given. A single word that is right, such as the Unix user of that name, is a reason.
var unplainFiles = map[string]string{
	"architecture_test.go": "it lists the words",
}

// word is a run of letters of one case, with a capital before small ones: NoBody is two of them, and so is lookAgain.
var word = regexp.MustCompile(`\p{Lu}?\p{Ll}+|\p{Lu}+`)

// unplain are the words in a text for which there are others.
func unplain(text string, others ...map[string]string) []string {
	var found []string
	for _, w := range word.FindAllString(text, -1) {
		w = strings.ToLower(w)
		if slices.ContainsFunc(others, func(m map[string]string) bool { return m[w] != "" }) {
			found = append(found, w)
		}
	}
	return found
}

// TestPlainWords finds the words of plainer in identifiers, comments and strings of all modules, and in documents.
func TestPlainWords(t *testing.T) {
	product := sources(t)
	files := filesUnder(t, ".", ".go", ".md")
	for _, file := range files {
		if unplainFiles[file] != "" {
			continue
		}
		others := []map[string]string{plainer}
		if slices.Contains(product, file) && !strings.HasSuffix(file, "_test.go") {
			others = append(others, plainerInProduct)
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check := plainPage
		if strings.HasSuffix(file, ".go") {
			check = plainSource
		}
		check(t, file, source, others)
	}
	for file := range unplainFiles {
		if !slices.Contains(files, file) {
			t.Errorf("%s does not exist", file)
		}
	}
	for _, module := range []string{"lab/", "test/", "docs/"} {
		if !slices.ContainsFunc(files, func(file string) bool { return strings.HasPrefix(file, module) }) {
			t.Errorf("no files in %s", module)
		}
	}
}

// plainSource finds words in a Go file, unless it is generated.
func plainSource(t *testing.T, file string, source []byte, others []map[string]string) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, source, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(f) {
		return
	}
	in := set.AddFile(file, -1, len(source))
	var s scanner.Scanner
	s.Init(in, source, nil, scanner.ScanComments)
	for at, tok, text := s.Scan(); tok != token.EOF; at, tok, text = s.Scan() {
		for _, w := range unplain(text, others...) {
			t.Errorf("%s: %q in %s; write %s", in.Position(at), w, tok, plainer[w]+plainerInProduct[w])
		}
	}
}

// plainPage finds words in a document.
func plainPage(t *testing.T, file string, source []byte, others []map[string]string) {
	t.Helper()
	for i, line := range strings.Split(string(source), "\n") {
		for _, w := range unplain(line, others...) {
			t.Errorf("%s:%d: %q; write %s", file, i+1, w, plainer[w]+plainerInProduct[w])
		}
	}
}

// TestUnplain shows that words are found as parts of identifiers, and not as parts of words.
func TestUnplain(t *testing.T) {
	for text, want := range map[string][]string{
		"lookAnew":                             {"anew"},
		"Keepsakes":                            {"keepsakes"},
		"// Whoever was told":                  {"whoever", "told"},
		`"served by nobody's"`:                 {"nobody"},
		"MEND_NOW":                             {"mend"},
		"http.NoBody":                          nil,
		"amend, their, henceforth, recommends": nil,
	} {
		if got := unplain(text, plainer, plainerInProduct); !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}
