package migrations

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
)

// changed is the job of a Migration whose objects have changed since.
type changed struct {
	Job
	of  *v1alpha1.Migration
	err error
}

func (c *changed) About() migration.About { return migration.About{Migration: c.of} }

func (c *changed) Status(ctx context.Context) (migration.StatusDocument, error) {
	return migration.StatusDocument{Summary: "as seen"}, errors.Join(ctx.Err(), c.err)
}

// TestStatusOf: a Migration that is over does not fail status, whatever became of its objects. One
// that is not does.
func TestStatusOf(t *testing.T) {
	gone := errors.New("the target does not answer")
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		phase v1alpha1.Phase
		ctx   context.Context
		err   error
		fails bool
		want  string
	}{
		"seen":        {phase: v1alpha1.PhaseFinished, want: "as seen"},
		"finished":    {phase: v1alpha1.PhaseFinished, err: gone, want: "as recorded"},
		"rolled back": {phase: v1alpha1.PhaseRolledBack, err: gone, want: "as recorded"},
		"moved":       {phase: v1alpha1.PhaseMoved, err: gone, fails: true},
		"finishing":   {phase: v1alpha1.PhaseFinishing, err: gone, fails: true},
		"not begun":   {err: gone, fails: true},
		"interrupted": {phase: v1alpha1.PhaseFinished, ctx: ended, fails: true},
	} {
		m := &v1alpha1.Migration{Status: v1alpha1.MigrationStatus{Phase: c.phase, Counts: v1alpha1.Counts{Moved: 7, Total: 7}}}
		ctx := c.ctx
		if ctx == nil {
			ctx = t.Context()
		}
		found, err := StatusOf(ctx, &changed{of: m, err: c.err})
		if (err != nil) != c.fails || !c.fails && !strings.HasPrefix(found.Summary, c.want) {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		if c.err != nil && !c.fails && (found.Counts.Moved != 7 || !strings.Contains(found.Text[0].Lines[0], gone.Error())) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
