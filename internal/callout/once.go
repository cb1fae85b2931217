package callout

import (
	"context"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const endWithin = 15 * time.Second

// Once calls an action once in a run; a resumed run calls it again.
type Once struct {
	Action v1alpha1.Action
	called bool
}

// Call calls the first time only, and ignores ctx: half a change of certificates, or half a
// terraform apply, is worse than a late Ctrl-C.
func (o *Once) Call(ctx context.Context, request, answer any) error {
	if o.called {
		return nil
	}
	if err := engine.MayWrite(ctx, true); err != nil {
		return err
	}
	o.called = true
	return call(context.WithoutCancel(ctx), o.Action, request, answer)
}

func (o *Once) Longest() time.Duration { return o.Action.Timeout.Duration + endWithin }
