// Package watching has what plays a controller look when something has changed, without asking over
// and over. For tests.
package watching

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// retry is how soon a watch that ended begins again.
const retry = 100 * time.Millisecond

// Whenever calls look at once, when an object of the lists has changed, and after the time that
// look returned, until ctx ends.
func Whenever(ctx context.Context, c client.WithWatch, look func(context.Context) time.Duration, lists ...client.ObjectList) {
	changed := make(chan struct{}, 1)
	var watchers sync.WaitGroup
	for _, list := range lists {
		watchers.Go(func() {
			wait.UntilWithContext(ctx, func(ctx context.Context) { once(ctx, c, list, changed) }, retry)
		})
	}
	for ctx.Err() == nil {
		timer := time.NewTimer(look(ctx))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	watchers.Wait()
}

// once tells of changes until the watch ends.
func once(ctx context.Context, c client.WithWatch, list client.ObjectList, changed chan<- struct{}) {
	w, err := c.Watch(ctx, list)
	if err != nil {
		return
	}
	defer w.Stop()
	for range w.ResultChan() {
		select {
		case changed <- struct{}{}:
		default: // a look is due already
		}
	}
}
