package labcli

import (
	"regexp"
	"strings"
	"testing"
)

// TestReporter: a line that is drawn is gone once another is printed, and what is printed stays.
func TestReporter(t *testing.T) {
	var out strings.Builder
	r := newReporter(&out)
	r.say("first")
	r.draw("half")
	r.draw("most")
	r.say("built %s", "all")
	r.say("last")
	got := regexp.MustCompile(` +[0-9.]+s  `).ReplaceAllString(out.String(), "")
	if want := "first\nhalf\r\x1b[Kmost\r\x1b[Kbuilt all\nlast\n"; got != want {
		t.Errorf("printed %q, not %q", got, want)
	}
	if r.liner() != nil {
		t.Error("lines are replaced on what is no terminal")
	}
}
