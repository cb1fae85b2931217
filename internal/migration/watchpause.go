package migration

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// pauseEvery is how often a run asks for a pause, which bounds how long a wait outlasts it.
const pauseEvery = 2 * time.Second

// watchPause cancels the run with engine.ErrPaused once mayRun returns it, in the middle of a wait;
// steps that write are finished, as after Ctrl-C. Other errors are left to the next tick: an API
// server that is away is no reason to stop.
func watchPause(ctx context.Context, mayRun func(context.Context) error, ticks <-chan time.Time) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-watched.Done():
				return
			case <-ticks:
				if err := mayRun(watched); errors.Is(err, engine.ErrPaused) {
					cancel(engine.ErrPaused)
					return
				}
			}
		}
	})
	return watched, func() {
		cancel(nil)
		asking.Wait()
	}
}
