package golden

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

func TestSettle(t *testing.T) {
	said := func(text string) func() string { return func() string { return text } }
	archive := txtar.Parse([]byte("-- in --\nx\n-- plan --\nmove\n-- findings --\nnone\n"))
	differences, err := settle(archive, Sections{"plan": said("move\n"), "findings": said("one\n"), "finish": said("never asked for")})
	if err != nil || len(differences) != 1 || !strings.HasPrefix(differences[0], "findings differs\ngot:\none\n\nwant:\nnone\n") {
		t.Errorf("got %q, %v", differences, err)
	}
	if got, want := string(txtar.Format(archive)), "-- in --\nx\n-- plan --\nmove\n-- findings --\none\n"; got != want {
		t.Errorf("the archive is %q, want %q", got, want)
	}
	if _, err := settle(archive, Sections{"rollback": said("")}); err == nil {
		t.Error("an archive without sections is as it should be")
	}
}
