package docs_test

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/replumb/replumb/hack/manual/page"
)

// longLines are the lines of text of a page that are longer than they need be. Code, tables and headings are as long as they are, and so is a
// line of one word, such as a link that cannot be broken.
func longLines(f textFile) []string {
	var long []string
	for _, l := range page.Lines(f.text) {
		words := strings.Fields(strings.TrimLeft(l.Text, "-*> "))
		if n := utf8.RuneCountInString(l.Text); l.Prose && n > page.Width && len(words) > 1 {
			long = append(long, fmt.Sprintf("line %d has %d characters, more than %d", l.Number, n, page.Width))
		}
	}
	return long
}

// TestLines: prose of all pages stands in lines that fit a terminal and a review.
func TestLines(t *testing.T) {
	for _, f := range textFiles(t, func(name string) bool { return path.Ext(name) == ".md" }) {
		for _, p := range longLines(f) {
			t.Errorf("%s: %s", f.name, p)
		}
	}
}

// TestLongLines shows what is found.
func TestLongLines(t *testing.T) {
	long := strings.Repeat("word ", 25)
	for text, want := range map[string]int{
		long:                     1,
		"- " + long:              1,
		"- entry\n  " + long:     1,
		"| " + long + " |":       0,
		"# " + long:              0,
		"```\n" + long + "\n```": 0,
		"text\n\n    " + long:    0,
		"- [link](" + strings.Repeat("x", 130) + ")": 0,
		strings.Repeat("ä ", 60):                     0,
	} {
		if got := longLines(textFile{"x.md", text}); len(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
