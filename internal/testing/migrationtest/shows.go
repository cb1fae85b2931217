package migrationtest

import (
	"testing"

	"github.com/replumb/replumb/internal/engine"
)

// Shows fails for every step of a plan that does not show beforehand what it writes: each only waits, or has a preview that works.
func Shows(t testing.TB, p *engine.Plan) {
	t.Helper()
	for _, s := range p.Steps() {
		_, waits := s.(engine.Waiter)
		_, shows := s.(engine.Previewer)
		if !waits && !shows {
			t.Errorf("step %s (%T) neither waits nor shows what it writes", s.ID(), s)
		}
		if _, err := engine.Preview(s); err != nil {
			t.Error(err)
		}
	}
}
