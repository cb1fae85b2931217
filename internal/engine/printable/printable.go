// Package printable makes text of others harmless to a terminal: objects and errors must not move
// the cursor, change the clipboard, or pass for a line of replumb's.
package printable

import (
	"io"
	"strings"
	"unicode"
)

// Text keeps lines and tabs, and removes control characters, changes of writing direction and
// characters without width. Other white space becomes a space, and invalid UTF-8 the replacement
// character.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
}

// Line is Text on one line, without tabs.
func Line(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(Text(s)) }

// Markdown is Line as text that Markdown takes for text, also in a cell of a table.
func Markdown(s string) string {
	var b strings.Builder
	for _, r := range Line(s) {
		switch {
		case r == '@':
			b.WriteString("&#64;") // else the user of that name is mentioned
			continue
		case r == '<':
			b.WriteString("&lt;")
			continue
		case strings.ContainsRune("\\`*_{}[]|#~>!", r):
			b.WriteRune('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Indented is Text with further lines indented, unlike replumb's own.
func Indented(s, indent string) string {
	lines := strings.Split(Text(s), "\n")
	for i, line := range lines {
		if i > 0 && line != "" && line[0] != ' ' {
			lines[i] = indent + line
		}
	}
	return strings.Join(lines, "\n")
}

// Writer passes on Text. Each write needs whole characters, as fmt's have.
type Writer struct{ To io.Writer }

func (w Writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.To, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
