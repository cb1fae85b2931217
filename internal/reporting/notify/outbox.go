// Package notify tells others how a run goes, by notifications to URLs and by Events in the
// cluster, and never holds up a run.
package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/replumb/replumb/internal/engine"
)

// capacity is how many events may wait: more of them means that nothing gets through.
const capacity = 256

var (
	errFull    = fmt.Errorf("%d others wait to be delivered", capacity)
	errClosed  = errors.New("the run is over")
	errGivenUp = errors.New("the time to deliver it was over")
)

// outbox delivers events one after another, apart from who puts them in.
type outbox struct {
	mu     sync.Mutex
	closed bool
	items  chan engine.Event
	done   chan struct{}
	giveUp context.CancelCauseFunc
}

func newOutbox(deliver func(context.Context, engine.Event), end func(context.Context)) *outbox {
	ctx, cancel := context.WithCancelCause(context.Background())
	o := &outbox{items: make(chan engine.Event, capacity), done: make(chan struct{}), giveUp: cancel}
	go func() {
		defer close(o.done)
		for e := range o.items {
			deliver(ctx, e) // also when given up: then it fails at once, and is counted
		}
		end(ctx)
	}()
	return o
}

// put never waits; it fails if there is no room.
func (o *outbox) put(e engine.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errClosed
	}
	select {
	case o.items <- e:
		return nil
	default:
		return errFull
	}
}

// close waits until all is delivered. When ctx ends first, the rest is given up.
func (o *outbox) close(ctx context.Context) {
	o.mu.Lock()
	if !o.closed {
		o.closed = true
		close(o.items)
	}
	o.mu.Unlock()
	select {
	case <-o.done:
	case <-ctx.Done():
		o.giveUp(errGivenUp)
		<-o.done
	}
	o.giveUp(nil)
}
