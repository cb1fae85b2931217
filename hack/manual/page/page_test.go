package page_test

import (
	"strings"
	"testing"

	"github.com/replumb/replumb/hack/manual/page"
)

// TestWrapped: prose is wrapped, and nothing else.
func TestWrapped(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 40))
	first, rest := long[:119], long[120:]
	for name, tt := range map[string]struct{ given, want string }{
		"a paragraph":           {long, first + "\n" + rest},
		"short lines":           {"one\ntwo\n\nthree", "one two\n\nthree"},
		"an entry":              {"- " + long, "- " + long[:114] + "\n  " + long[115:]},
		"two entries":           {"- one\n- two", "- one\n- two"},
		"a heading":             {"# " + long, "# " + long},
		"a table":               {"| " + long + " |", "| " + long + " |"},
		"a block of code":       {"```\n" + long + "\n```", "```\n" + long + "\n```"},
		"indented code":         {"text\n\n    " + long, "text\n\n    " + long},
		"a dash begins no line": {first + " - " + rest, first[:114] + "\nword - " + rest},
	} {
		if got := page.Wrapped(tt.given); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

// TestLines: what is indented below an entry of a list belongs to it, and is code nowhere else but after an empty line.
func TestLines(t *testing.T) {
	text := "text\n    goes on\n\n    code\n\n    more\n\n- entry\n\n    goes on\n\n~~~\n| code |\n~~~\n| table |"
	want := "pp.c.c.p.p.ccc."
	got := ""
	for _, l := range page.Lines(text) {
		switch {
		case l.Code:
			got += "c"
		case l.Prose:
			got += "p"
		default:
			got += "."
		}
	}
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
