package migration

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// pauseEvery is how often a run looks whether a pause is asked for: whatever it waits for, it ends
// within that time and a request.
const pauseEvery = 2 * time.Second

// watchPause lets a run notice a pause in the middle of what it waits for: at each tick it asks
// mayRun, and engine.ErrPaused as an answer cancels the run with that as its cause. Steps that only
// wait end then, at once; those that write are brought to their end, as after Ctrl-C. Any other
// answer is made up for by the next: an API server that is away is no reason to stop. stop returns
// once nothing is asked any more.
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
