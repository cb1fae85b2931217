package probe

import (
	"sync"
	"time"
)

// workers run a function for many times at once. A few stay idle: a new goroutine and its stack
// cost more than a request.
type workers struct {
	work    func(time.Time)
	queue   chan time.Time
	idle    chan struct{}
	running sync.WaitGroup
}

// maxIdle bounds them after an outage.
const maxIdle = 8

func newWorkers(work func(time.Time)) *workers {
	return &workers{work: work, queue: make(chan time.Time), idle: make(chan struct{}, maxIdle)}
}

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

// close waits for all; nothing can be done afterwards.
func (w *workers) close() {
	close(w.queue)
	w.running.Wait()
}
