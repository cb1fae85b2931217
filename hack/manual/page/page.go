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
	fence, before := "", ""
	entry := false // whether a list may go on here: what is indented then is no code
	for i, text := range strings.Split(markdown, "\n") {
		l := Line{Number: i + 1, Text: text}
		trimmed := strings.TrimSpace(text)
		indented := strings.HasPrefix(text, "    ") || strings.HasPrefix(text, "\t")
		switch {
		case fence != "":
			l.Code = true
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~"):
			fence, l.Code = trimmed[:3], true
		case indented && !entry && (before == "" || all[i-1].Code):
			l.Code = true
		case trimmed == "", strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "#"):
		default:
			l.Prose = true
		}
		if !l.Code && trimmed != "" {
			entry = item.MatchString(trimmed) || entry && strings.HasPrefix(text, " ")
		}
		before = trimmed
		all = append(all, l)
	}
	return all
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
