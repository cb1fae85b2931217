package probe

import (
	"sync"
	"time"
)

// workers do something for each of many times, all at once. A few wait for more when they are done: to begin again each time, and to grow
// a stack, takes more than a request does.
type workers struct {
	work    func(time.Time)
	queue   chan time.Time
	idle    chan struct{}
	running sync.WaitGroup
}

// maxIdle bounds how many wait; after an outage thousands would.
const maxIdle = 8

func newWorkers(work func(time.Time)) *workers {
	return &workers{work: work, queue: make(chan time.Time), idle: make(chan struct{}, maxIdle)}
}

// do does not wait for anything.
func (w *workers) do(at time.Time) {
	select {
	case w.queue <- at:
	default:
		w.running.Go(func() { w.run(at) })
	}
}

func (w *workers) run(at time.Time) {
	for ok := true; ok; {
		w.work(at)
		select {
		case w.idle <- struct{}{}:
		default:
			return
		}
		at, ok = <-w.queue
		<-w.idle
	}
}

// close waits for what is under way. Nothing can be done any more.
func (w *workers) close() {
	close(w.queue)
	w.running.Wait()
}
