// Package probe measures what clients of a cluster experience. It sends requests on a fixed
// schedule (an open loop: latency counts from the scheduled time) and reports one Window per target
// and second; Series, Stats and Loss are computed from these, in any process.
package probe

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

const flushEvery = 250 * time.Millisecond

// requester sends one request per call, concurrently, within the context's time-out.
type requester interface {
	do(ctx context.Context) error
	close()
}

// Prober probes a Config's targets. Its optional hooks are set before Run, are called concurrently,
// and hold up their request.
type Prober struct {
	// OnFailure hears of each failed request at once, before its window.
	OnFailure func(target string, scheduled time.Time, failure *Failure)
	// OnConnect hears of each TCP connection and UDP socket, name servers included, once it is
	// made, when its first packets may have been seen.
	OnConnect func(network string, local, remote netip.AddrPort)

	runs  []*run
	emit  func(Interval) error
	still standstill
}

// New prepares a prober. Emit gets each window, never concurrently; its error ends the probing.
func New(config Config, emit func(Interval) error) *Prober {
	p := &Prober{emit: emit}
	for _, target := range config.Targets {
		p.runs = append(p.runs, &run{target: target, connect: newRequester, still: &p.still})
	}
	return p
}

// Run probes until ctx ends, then waits for requests and writes the last windows.
func (p *Prober) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	var paced sync.WaitGroup
	for i, r := range p.runs {
		// Spread the targets over one interval so that they do not all fire at the same instant.
		offset := r.target.interval() * time.Duration(i) / time.Duration(len(p.runs))
		r.start(begin, p.OnFailure, p.OnConnect)
		paced.Go(func() { r.pace(ctx, begin.Add(offset)) })
	}
	ended := make(chan struct{})
	go func() { paced.Wait(); close(ended) }()

	err := p.flush(ended)
	cancel()
	<-ended
	return err
}

// flush writes windows as they close, and the rest at the end. All probers of a process flush at
// the same instants, to wake it once.
func (p *Prober) flush(ended <-chan struct{}) error {
	timer := time.NewTimer(flushEvery)
	defer timer.Stop()
	for {
		due := time.Now().Truncate(flushEvery).Add(flushEvery)
		timer.Reset(time.Until(due))
		p.still.waitFor(due)
		select {
		case <-ended:
			return p.write((*recorder).final)
		case <-timer.C:
			p.still.heard(time.Now())
			if err := p.write((*recorder).closed); err != nil {
				return err
			}
		}
	}
}

func (p *Prober) write(take func(*recorder, time.Time) []Interval) error {
	now := time.Now()
	for _, r := range p.runs {
		for _, w := range take(r.recorder, now) {
			if err := p.emit(w); err != nil {
				return err
			}
		}
	}
	return nil
}

type run struct {
	target   Target
	connect  func(target Target, hooks hooks) requester
	recorder *recorder
	still    *standstill
	failed   func(target string, scheduled time.Time, failure *Failure)
	opened   openedFunc
}

func (r *run) start(begin time.Time, failed func(string, time.Time, *Failure), opened openedFunc) {
	r.recorder, r.failed, r.opened = newRecorder(r.target, begin), failed, opened
}

// pace sends requests on schedule until ctx ends, then waits for those under way.
func (r *run) pace(ctx context.Context, first time.Time) {
	requester := r.connect(r.target, hooks{reconnected: r.recorder.reconnected, opened: r.opened})
	defer requester.close()
	slots := make(chan struct{}, r.target.MaxInFlight)
	w := newWorkers(func(scheduled time.Time) {
		r.request(ctx, requester, scheduled)
		<-slots
	})
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()

	end, bounded := ctx.Deadline()
	for n := 0; ; n++ {
		// Multiplying instead of adding keeps the schedule free of drift.
		scheduled := first.Add(time.Duration(float64(n) * float64(time.Second) / r.target.Rate))
		// A busy machine ends ctx after its deadline, and no request is due by then.
		if bounded && !scheduled.Before(end) {
			return
		}
		r.recorder.advance(scheduled)
		early := time.Until(scheduled) > 0
		if !waitUntil(ctx, timer, scheduled) {
			return
		}
		now := time.Now()
		if early {
			r.recorder.woke(scheduled, now)
		}
		r.recorder.begin(scheduled, now)
		if now.Sub(scheduled) > LateAfter || !r.acquire(slots, timer, scheduled) {
			r.recorder.missed(scheduled)
			continue
		}
		w.do(scheduled)
	}
}

// acquire waits for a slot for the request's time, even when probing ends: a begun request gets a
// true answer.
func (r *run) acquire(slots chan struct{}, timer *time.Timer, scheduled time.Time) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	timer.Reset(time.Until(scheduled.Add(time.Duration(r.target.Timeout))))
	select {
	case slots <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// request ends by its own time-out, not with the probing.
func (r *run) request(ctx context.Context, requester requester, scheduled time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(r.target.Timeout))
	defer cancel()
	ctx, try := withTry(ctx)
	sent := time.Now()
	err := requester.do(ctx)
	r.record(scheduled, sent, time.Now(), try.again, err)
}

// record notes a request's end; again, that a name server was asked twice.
func (r *run) record(scheduled, sent, ended time.Time, again bool, err error) {
	stood := r.still.within(sent, ended)
	if err == nil {
		r.recorder.succeed(scheduled, ended, again || ended.Sub(sent)-stood > LateAfter)
		return
	}
	failure := asFailure(err)
	if failure.saysNothing(stood) {
		r.recorder.missed(scheduled)
		return
	}
	r.recorder.fail(scheduled, failure)
	if r.failed != nil {
		r.failed(r.target.Name, scheduled, failure)
	}
}

type try struct {
	// again says that a name server had to be asked a second time.
	again bool
}

type tryKey struct{}

func withTry(ctx context.Context) (context.Context, *try) {
	t := &try{}
	return context.WithValue(ctx, tryKey{}, t), t
}

func tryOf(ctx context.Context) *try {
	if t, ok := ctx.Value(tryKey{}).(*try); ok {
		return t
	}
	return &try{}
}

func waitUntil(ctx context.Context, timer *time.Timer, at time.Time) bool {
	timer.Reset(time.Until(at))
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}
