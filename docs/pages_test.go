package docs_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/hack/manual/page"
)

// textFile is what people read: a page of Markdown, or a file of examples.
type textFile struct {
	// name from the top of the repository.
	name string
	text string
}

func (f textFile) markdown() bool { return path.Ext(f.name) == ".md" }

// readers are all files that are held to be true: README.md, CONTRIBUTING.md, CHANGELOG.md, docs and examples.
func readers(t *testing.T) []textFile {
	t.Helper()
	all := textFiles(t, func(name string) bool {
		return name == "README.md" || name == "CONTRIBUTING.md" || name == "CHANGELOG.md" || strings.HasPrefix(name, "examples/") ||
			strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md"
	})
	if len(all) < 40 {
		t.Fatalf("only %d files to read", len(all))
	}
	return all
}

// textFiles are those of the repository that are chosen. What is built or hidden is left out.
func textFiles(t *testing.T, chosen func(name string) bool) []textFile {
	t.Helper()
	var all []textFile
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(file), "../")
		if d.IsDir() {
			if name == "bin" || name == "build" || strings.HasPrefix(d.Name(), ".") && name != ".." {
				return fs.SkipDir
			}
			return nil
		}
		if !chosen(name) {
			return nil
		}
		text, err := os.ReadFile(file)
		all = append(all, textFile{name, string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// codeSpan is code in a line of text. It may go over the end of a line.
var codeSpan = regexp.MustCompile("`[^`]+`")

// snippets are the lines of code of a file, and its spans of code. Of a file that is no page, all lines are code but comments; what is indented
// in a comment is code too.
func snippets(f textFile) []string {
	if !f.markdown() {
		var all []string
		for line := range strings.SplitSeq(joined(f.text), "\n") {
			if comment, ok := strings.CutPrefix(line, "#"); !ok || strings.HasPrefix(comment, "  ") {
				all = append(all, strings.TrimSpace(comment))
			}
		}
		return all
	}
	var code, text []string
	for _, l := range page.Lines(f.text) {
		if l.Code {
			code = append(code, l.Text)
			continue
		}
		text = append(text, l.Text)
	}
	all := strings.Split(joined(strings.Join(code, "\n")), "\n")
	for _, span := range codeSpan.FindAllString(strings.Join(text, "\n"), -1) {
		all = append(all, strings.Join(strings.Fields(strings.Trim(span, "`")), " "))
	}
	return all
}

// joined is text with lines in one that a backslash joins.
func joined(text string) string {
	return regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, " ")
}

// problems are what a check finds wrong, as an error of the test for each file.
func problems(t *testing.T, check func(f textFile) []string) {
	t.Helper()
	for _, f := range readers(t) {
		for _, p := range check(f) {
			t.Errorf("%s: %s", f.name, p)
		}
	}
}

// TestSnippets: lines that are joined are one, and text is no code.
func TestSnippets(t *testing.T) {
	text := "`a` and `b\nc` here\n\n    d \\\n      e\n\n```\nf\n```\n"
	want := []string{"d  e", "f", "a", "b c"}
	var got []string
	for _, s := range snippets(textFile{"x.md", text}) {
		if s = strings.TrimSpace(s); s != "" && !strings.HasPrefix(s, "```") {
			got = append(got, s)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := snippets(textFile{"x.yaml", "# replumb looks\n#   replumb apply"}); !slices.Equal(got, []string{"replumb apply"}) {
		t.Errorf("%q", got)
	}
}
