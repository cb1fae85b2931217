package progress

import (
	"fmt"
	"strings"

	"github.com/replumb/replumb/internal/engine/printable"
)

// Style is what a page is drawn on.
type Style struct {
	Width, Height int
	Color         bool
}

// Height is how many lines a page has at most, where the terminal does not say.
const Height = 40

func (t Tone) color() string {
	switch t {
	case Strong:
		return "1"
	case Good:
		return "32"
	case Bad:
		return "31"
	case Attention:
		return "33"
	}
	return ""
}

func (s Style) paint(tone Tone, text string) string {
	color := tone.color()
	if !s.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

const head = 7

// part is some lines of a page. The highest rank gives way first; gates are the last.
type part struct {
	rank  int
	lines []string
}

// The ranks of parts.
const (
	rankNeeded = iota
	rankGates
	rankTrouble
	rankLock
	rankTiers
	rankLosses
)

// Lines are the page, within the width and height of the style. Gates give way last.
func (v View) Lines(s Style) []string {
	if s.Width <= 0 {
		s.Width = 100
	}
	if s.Height <= 0 || s.Height > Height {
		s.Height = Height
	}
	parts := []part{{rankNeeded, []string{s.one(Strong, v.Title())}}}
	for _, f := range v.Facts() {
		if f.Label == labelNext {
			parts = append(parts, part{rankGates, v.gates(s)})
		}
		parts = append(parts, part{rankOf(f.Label), s.labelled(f)})
		if f.Label == labelLost {
			parts = append(parts, part{rankLosses, v.losses(s)})
		}
	}
	if v.Next == "" {
		parts = append(parts, part{rankGates, v.gates(s)})
	}
	return fit(parts, s.Height)
}

func rankOf(label string) int {
	switch label {
	case labelTiers:
		return rankTiers
	case labelLock:
		return rankLock
	case labelWaits, labelError:
		return rankTrouble
	}
	return rankNeeded
}

func fit(parts []part, height int) (page []string) {
	over := -height
	for _, p := range parts {
		over += len(p.lines)
	}
	for rank := rankLosses; rank > rankNeeded; rank-- {
		for i := range parts {
			if p := &parts[i]; over > 0 && p.rank == rank {
				before := len(p.lines)
				p.lines = shortened(p.lines, over)
				over -= before - len(p.lines)
			}
		}
	}
	for _, p := range parts {
		page = append(page, p.lines...)
	}
	return page
}

func shortened(lines []string, over int) []string {
	keep := len(lines) - over - 1
	if keep < 1 {
		return nil
	}
	return append(lines[:keep:keep], fmt.Sprintf("%*sand %d more lines", head, "", len(lines)-keep))
}

func (s Style) labelled(f Fact) (lines []string) {
	label := f.Label
	for _, line := range wrap(printable.Text(f.Text), s.Width-head) {
		lines = append(lines, fmt.Sprintf("%-*s", head, label)+s.paint(f.Tone, line))
		label = ""
	}
	return lines
}

// wrap breaks lines that are too wide, at blanks if it can, and keeps their indent.
func wrap(text string, width int) (lines []string) {
	width = max(width, 20)
	for _, line := range strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		if len(indent) > width/2 {
			indent = ""
		}
		rest := []rune(line)
		for len(rest) > width {
			at := width
			for i := width; i > len(indent); i-- {
				if rest[i] == ' ' {
					at = i
					break
				}
			}
			lines = append(lines, strings.TrimRight(string(rest[:at]), " "))
			rest = []rune(indent + strings.TrimLeft(string(rest[at:]), " "))
		}
		lines = append(lines, string(rest))
	}
	return lines
}

func (s Style) one(tone Tone, text string) string {
	runes := []rune(printable.Line(text))
	if len(runes) > s.Width {
		runes = append(runes[:s.Width-1], '…')
	}
	return s.paint(tone, string(runes))
}

func (v View) losses(s Style) (lines []string) {
	inner := Style{Width: s.Width - head, Color: s.Color}
	for _, loss := range v.Losses() {
		lines = append(lines, strings.Repeat(" ", head)+inner.one(Bad, loss))
	}
	return lines
}

func (v View) gates(s Style) (lines []string) {
	for _, g := range v.Gates {
		title := fmt.Sprintf("%s (waits for you since %s)", g.Title, g.Since.UTC().Format("15:04 UTC"))
		lines = append(lines, s.labelled(Fact{"gate", title, Attention})...)
		for _, line := range wrap(printable.Text(g.Guide), s.Width-head) {
			lines = append(lines, strings.TrimRight(strings.Repeat(" ", head)+line, " "))
		}
	}
	return lines
}
