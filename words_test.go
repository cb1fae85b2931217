package replumb

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// sharedName is the one meaning of a type's name in all packages that export it.
type sharedName struct {
	Meaning  string   `json:"meaning"`
	Packages []string `json:"packages"`
}

// product are the sources without what is there for tests.
func product(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(sources(t), func(file string) bool { return strings.HasPrefix(file, "internal/testing/") })
}

// TestSharedNames fails for a type's name that two packages export, unless
// testdata/shared-names.yaml has the one meaning it has in all of them.
func TestSharedNames(t *testing.T) {
	const page = "testdata/shared-names.yaml"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var known map[string]sharedName
	if err := yaml.UnmarshalStrict(data, &known); err != nil {
		t.Fatal(err)
	}
	shared := sharedTypes(parse(t, product(t)))
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		switch k, ok := known[name]; {
		case !ok || k.Meaning == "":
			t.Errorf("%s is a type in %s: rename all but one, or have %s say what it means in each", name, strings.Join(shared[name], ", "), page)
		case !slices.Equal(k.Packages, shared[name]):
			t.Errorf("%s has %s in %q, and it is in %q: is it %q in each?", page, name, k.Packages, shared[name], k.Meaning)
		}
	}
	for name := range known {
		if shared[name] == nil {
			t.Errorf("%s has %s, which no two packages share", page, name)
		}
	}
}

// parse reads Go files, but neither tests nor generated ones.
func parse(t *testing.T, files []string) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	set, all := token.NewFileSet(), map[string]*ast.File{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if !ast.IsGenerated(f) {
			all[file] = f
		}
	}
	return set, all
}

// sharedTypes are the exported types of one name in several packages, which are in order.
func sharedTypes(_ *token.FileSet, files map[string]*ast.File) map[string][]string {
	in := map[string][]string{}
	for file, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Name.IsExported() && !slices.Contains(in[s.Name.Name], path.Dir(file)) {
				in[s.Name.Name] = append(in[s.Name.Name], path.Dir(file))
			}
			_, inside := n.(*ast.FuncDecl)
			return !inside
		})
	}
	maps.DeleteFunc(in, func(_ string, packages []string) bool { return len(packages) < 2 })
	for _, packages := range in {
		slices.Sort(packages)
	}
	return in
}

// TestSharedTypes shows that types are found alone and in groups, and neither functions nor types
// inside of them.
func TestSharedTypes(t *testing.T) {
	set, files := token.NewFileSet(), map[string]*ast.File{}
	for file, text := range map[string]string{
		"a/x.go": "package a\ntype Scene struct{}\ntype Alone int\ntype own int",
		"a/y.go": "package a\nfunc F() { type Local int }",
		"b/x.go": "package b\ntype (\n\tScene int\n\town int\n)\nfunc G() { type Local int }",
		"c/x.go": "package c\nfunc Alone() {}",
	} {
		f, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		files[file] = f
	}
	got := sharedTypes(set, files)
	if len(got) != 1 || !slices.Equal(got["Scene"], []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
}

// columns is the longest line of a comment, with a tab for four.
const columns = 100

// TestComments holds comments to their columns, and their sentences to a subject that is named.
func TestComments(t *testing.T) {
	// Comments of the API are the descriptions in its CustomResourceDefinitions, line by line.
	files := slices.DeleteFunc(sources(t), func(file string) bool { return strings.HasPrefix(file, "api/") })
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(source), "\n") {
			if wide(line) {
				t.Errorf("%s:%d: a comment of more than %d columns", file, i+1, columns)
			}
		}
	}
	set, parsed := parse(t, files)
	for _, f := range parsed {
		for _, group := range f.Comments {
			if clause := relative.FindString(group.Text()); clause != "" {
				t.Errorf("%s: %q begins with a relative clause: name the subject", set.Position(group.Pos()), clause)
			}
		}
	}
}

// wide reports whether a line is a comment with too many columns. A word alone, such as a link,
// cannot be broken, and neither can lists and what a tool reads.
func wide(line string) bool {
	text, is := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
	return is && strings.Contains(text, " ") && !strings.HasPrefix(text, "+") && !strings.HasPrefix(text, "  ") &&
		utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > columns
}

// relative is a sentence that begins with a clause in place of its subject.
var relative = regexp.MustCompile(`(?:^|[.:]\s)(?:What|Who|Whose|Whoever|Those that|Those who) [a-z]+ \S+`)

// TestRelative shows what is found, and that questions and clauses inside of sentences are not.
func TestRelative(t *testing.T) {
	for text, want := range map[string]bool{
		"What is written is kept.":             true,
		"It waits. Who may write, may not.":    true,
		"It says what is written.":             false,
		"Whatsoever":                           false,
		"It reads both: those that are there.": false,
	} {
		if got := relative.MatchString(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}
