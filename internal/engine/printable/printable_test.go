package printable_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/replumb/replumb/internal/engine/printable"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                              "",
		"a\tb\n  c":                     "a\tb\n  c",
		"Dienst „Müller“ ✓ 服务 µs":       "Dienst „Müller“ ✓ 服务 µs",
		"\x1b[31mred\x1b[0m":            "[31mred[0m",
		"\x1b]52;c;eA==\x07":            "]52;c;eA==",
		"\u009b2J":                      "2J",
		"\x9b2J":                        "\ufffd2J",
		"12%\r99%":                      "12% 99%",
		"\u202eabc\u2066\u200b\u200f":   "abc",
		"a\u2028b\u0085c\u00a0d\ve\ff":  "a b c d e f",
		"\x00\x08\x7f\U000e0041\ufeff.": ".",
	} {
		if got := printable.Text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := printable.Line("a\nb\tc\r\nd"); got != "a b c  d" {
		t.Errorf("a line: %q", got)
	}
	if got := printable.Indented("a\nhint: b\x1b\n\n   c\n\td", "  "); got != "a\n  hint: b\n\n   c\n  \td" {
		t.Errorf("indented: %q", got)
	}
}

func TestWriter(t *testing.T) {
	var b strings.Builder
	const text = "a\x1b[1m ü\n"
	if n, err := (printable.Writer{To: &b}).Write([]byte(text)); n != len(text) || err != nil || b.String() != "a[1m ü\n" {
		t.Errorf("%d, %v, %q", n, err, b.String())
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\u202e\u009b1m\xff\r\n\tx")
	f.Fuzz(func(t *testing.T, in string) {
		got := printable.Text(in)
		for _, r := range got {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Errorf("%q became %q", in, got)
			}
		}
		if !utf8.ValidString(got) || printable.Text(got) != got || strings.Count(got, "\n") != strings.Count(in, "\n") {
			t.Errorf("%q became %q", in, got)
		}
		if strings.ContainsAny(printable.Line(in), "\n\t") {
			t.Errorf("%q has more than a line", in)
		}
	})
}
