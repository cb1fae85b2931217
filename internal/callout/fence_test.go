package callout

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/lease"
)

// closed is a fence behind which another may be at work, or nobody knows.
type closed struct{ err error }

func (c closed) MayWrite(_ context.Context, sure bool) error {
	if !sure {
		return nil // after a renewal of seconds ago
	}
	return c.err
}

// TestNothingIsCalledBehindAFence: an action acts on the world as its caller knew it. What the
// fence did not let pass once is called when it does.
func TestNothingIsCalledBehindAFence(t *testing.T) {
	calls := 0
	action := server(t, func(http.ResponseWriter, *http.Request) { calls++ })
	once := Once{Action: action}
	lost := engine.Fenced(t.Context(), closed{&lease.LostError{Why: errors.New("it is another's")}})
	unknown := engine.Fenced(t.Context(), closed{errors.New("no answer")})
	for _, ctx := range []context.Context{lost, unknown} {
		for name, err := range map[string]error{"Call": Call(ctx, action, nil, nil), "Once": once.Call(ctx, nil, nil)} {
			if err == nil || Called(err) || engine.Revoked(err) != (ctx == lost) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if calls > 0 {
		t.Errorf("%d calls", calls)
	}
	open := engine.Fenced(t.Context(), closed{})
	if err := errors.Join(once.Call(open, nil, nil), once.Call(open, nil, nil), Call(open, action, nil, nil)); err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
