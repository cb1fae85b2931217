// Package page lays out pages of Markdown that are generated.
package page

import (
	"regexp"
	"strings"
)

// Width is how long a line of prose may be, in characters.
const Width = 120

var (
	// item begins an entry of a list.
	item = regexp.MustCompile(`^(?:[-*+]|\d+[.)]) +`)
	// marker is a word that would begin an entry, a heading or a quotation, if it began a line.
	marker = regexp.MustCompile(`^(?:[-*+>]|\d+[.)]|#+)$`)
)

// Line is one line of a page, as Markdown reads it.
type Line struct {
	// Number of the line, from 1.
	Number int
	Text   string
	// Prose says that text flows here: no code, no table, no heading.
	Prose bool
	// Code says that it is in a block of code.
	Code bool
}

// Lines are those of a page. What marks a block of code off belongs to the block.
func Lines(markdown string) []Line {
	var all []Line
	var r reader
	for i, text := range strings.Split(markdown, "\n") {
		l := Line{Number: i + 1, Text: text, Code: r.code(text)}
		l.Prose = !l.Code && flows(strings.TrimSpace(text))
		all = append(all, l)
	}
	return all
}

// flows reports whether a line that is no code is text of a paragraph or of a list.
func flows(trimmed string) bool {
	return trimmed != "" && !strings.HasPrefix(trimmed, "|") && !strings.HasPrefix(trimmed, "#")
}

// reader is where one stands in a page.
type reader struct {
	// fence is what ends the block of code; empty outside of one.
	fence string
	// text says that a paragraph goes on here, also over lines that are indented.
	text bool
	// entry says that a list may go on here, whose text is indented.
	entry bool
}

// code reports whether the next line is code.
func (r *reader) code(text string) bool {
	trimmed := strings.TrimSpace(text)
	if r.fence != "" {
		if strings.HasPrefix(trimmed, r.fence) {
			r.fence, r.text = "", false
		}
		return true
	}
	if strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~") {
		r.fence = trimmed[:3]
		return true
	}
	indented := strings.HasPrefix(text, "    ") || strings.HasPrefix(text, "\t")
	if indented && !r.entry && !r.text {
		return true
	}
	if r.text = trimmed != ""; r.text {
		r.entry = item.MatchString(trimmed) || r.entry && strings.HasPrefix(text, " ")
	}
	return false
}

// Wrapped is a page with paragraphs and entries of lists in lines of at most Width characters, where words allow it. Code, tables, headings
// and what is indented stay as they are.
func Wrapped(markdown string) string {
	var out, paragraph []string
	flush := func() {
		out = append(out, wrapped(paragraph)...)
		paragraph = nil
	}
	for _, l := range Lines(markdown) {
		switch {
		case !l.Prose || strings.HasPrefix(l.Text, " "):
			flush()
			out = append(out, l.Text)
		case item.MatchString(l.Text):
			flush()
			fallthrough
		default:
			paragraph = append(paragraph, l.Text)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// wrapped are the lines of one paragraph or entry. Those of an entry stand below its text.
func wrapped(paragraph []string) []string {
	if len(paragraph) == 0 {
		return nil
	}
	indent := strings.Repeat(" ", len(item.FindString(paragraph[0])))
	var all []string
	current := ""
	for i, word := range glued(strings.Fields(strings.Join(paragraph, " "))) {
		if i > 0 && len([]rune(current))+1+len([]rune(word)) > Width {
			all, current = append(all, current), indent+word
			continue
		}
		if i > 0 {
			current += " "
		}
		current += word
	}
	return append(all, current)
}

// glued are words, of which those that must not begin a line are at the end of the word before.
func glued(words []string) []string {
	var all []string
	for _, w := range words {
		if len(all) > 0 && marker.MatchString(w) {
			all[len(all)-1] += " " + w
			continue
		}
		all = append(all, w)
	}
	return all
}

// Cell is text for a cell of a table.
func Cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(strings.Join(strings.Fields(text), " "))
}

// Code is text as code in a cell of a table; empty if there is none.
func Code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}
