package labcli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// reporter prints a line per event, with the time since the start, and on terminals one below them that is drawn again and again.
type reporter struct {
	w     io.Writer
	start time.Time

	mu    sync.Mutex
	drawn bool // whether the last line is to be replaced
}

func newReporter(w io.Writer) *reporter { return &reporter{w: w, start: time.Now()} }

func (r *reporter) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.w, "%s%6.1fs  %s\n", r.erase(), time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
	r.drawn = false
}

func (r *reporter) draw(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.w, "%s%6.1fs  %s", r.erase(), time.Since(r.start).Seconds(), line)
	r.drawn = true
}

// erase is what takes the drawn line away.
func (r *reporter) erase() string {
	if !r.drawn {
		return ""
	}
	return "\r\x1b[K"
}

// liner is draw on terminals, and nil elsewhere.
func (r *reporter) liner() func(line string) {
	if f, ok := r.w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		return r.draw
	}
	return nil
}
