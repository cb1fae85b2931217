package progress

import (
	"io"
	"strings"
	"time"

	"golang.org/x/term"
)

// Screen shows one View after the other: on a terminal in place, elsewhere those with news, one
// below the other.
type Screen struct {
	w     io.Writer
	color bool
	size  func() (width, height int)

	shown bool
	key   string
	done  int
	at    time.Time
}

// quietFor is for how long, where pages stand below each other, mere progress is not shown again.
const quietFor = 30 * time.Second

// NewScreen shows on a terminal of the given file descriptor; a negative one is none, and so is a
// dumb one. NO_COLOR in environ turns colours off.
func NewScreen(w io.Writer, fd int, environ func(string) string) *Screen {
	s := &Screen{w: w}
	if fd < 0 || environ("TERM") == "dumb" {
		return s
	}
	s.color = environ("NO_COLOR") == ""
	s.size = func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width < 20 || height < 5 {
			return 80, 24
		}
		return width, height - 1 // the cursor stands on the last one
	}
	return s
}

// Show shows a View.
func (s *Screen) Show(v View) {
	if s.size == nil {
		s.below(v)
		return
	}
	width, height := s.size()
	var page strings.Builder
	if !s.shown {
		page.WriteString("\x1b[2J")
	}
	page.WriteString("\x1b[H")
	for _, line := range v.Lines(Style{Width: width, Height: height, Color: s.color}) {
		page.WriteString(line + "\x1b[K\r\n")
	}
	page.WriteString("\x1b[J")
	s.shown = true
	_, _ = io.WriteString(s.w, page.String()) // a reader that went away is found by who owns it
}

func (s *Screen) below(v View) {
	key := v.Key()
	if s.shown && key == s.key && (v.Done == s.done || v.At.Sub(s.at) < quietFor) {
		return
	}
	page := strings.Join(v.Lines(Style{}), "\n") + "\n"
	if s.shown {
		page = "\n" + page
	}
	s.shown, s.key, s.done, s.at = true, key, v.Done, v.At
	_, _ = io.WriteString(s.w, page)
}
