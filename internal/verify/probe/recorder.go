package probe

import (
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// recorder turns requests of one target into windows. It reads no clock.
type recorder struct {
	mu     sync.Mutex
	target string
	// open holds the windows not yet written, by start.
	open map[int64]*openWindow
	// next is the start of the window to be written next, seq its number.
	next int64
	seq  uint64
	// horizon: no request will be scheduled before it any more.
	horizon time.Time
	// lastOK is the latest success of all, carried the latest one in a written window.
	lastOK, carried time.Time
	stalls          stalls
}

type openWindow struct {
	window    Interval
	pending   int
	latencies *hdr.Histogram
	lastOK    time.Time
}

func newRecorder(target Target, begin time.Time) *recorder {
	return &recorder{
		target: target.Name, open: map[int64]*openWindow{}, next: windowStart(begin),
		horizon: begin, lastOK: begin, carried: begin, stalls: newStalls(target.interval()),
	}
}

func (r *recorder) at(t time.Time) *openWindow {
	start := windowStart(t)
	w := r.open[start]
	if w == nil {
		w = &openWindow{window: Interval{Target: r.target, Start: start}}
		r.open[start] = w
	}
	return w
}

func (r *recorder) begin(scheduled, begun time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalls.begin(begun)
	r.at(scheduled).pending++
}

// missed notes a begun request without a result.
func (r *recorder) missed(scheduled time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.at(scheduled)
	w.pending--
	w.window.NotMeasured++
}

func (r *recorder) succeed(scheduled, answered time.Time, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.at(scheduled)
	w.pending--
	w.window.Sent++
	w.window.OK++
	if late {
		w.window.Late++
	}
	if w.latencies == nil {
		w.latencies = newHistogram()
	}
	recordLatency(w.latencies, answered.Sub(scheduled))
	if !answered.After(r.lastOK) {
		return
	}
	// The gap belongs to the second in which it ended, maybe after the request's.
	ended := r.at(answered)
	ended.window.Gap = max(ended.window.Gap, answered.Sub(r.lastOK).Microseconds())
	ended.lastOK = answered
	r.lastOK = answered
	if stall, ok := r.stalls.succeed(answered); ok {
		ended.window.Stalls = append(ended.window.Stalls, stall)
	}
}

func (r *recorder) fail(scheduled time.Time, failure *Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.at(scheduled)
	w.pending--
	w.window.Sent++
	w.window.Failed++
	if w.window.Errors == nil {
		w.window.Errors = map[Class]int{}
		w.window.Example = failure.Err.Error()
	}
	w.window.Errors[failure.Class]++
	at := scheduled.UnixMicro()
	if w.window.FirstFailure == 0 || at < w.window.FirstFailure {
		w.window.FirstFailure = at
	}
	w.window.LastFailure = max(w.window.LastFailure, at)
}

func (r *recorder) reconnected(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(at).window.Reconnects++
}

// woke notes when a prober that was only waiting woke up.
func (r *recorder) woke(scheduled, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalls.woke(scheduled, at)
	if behind := at.Sub(scheduled); behind >= behindFrom {
		w := r.at(scheduled)
		w.window.Behind = max(w.window.Behind, behind.Microseconds())
	}
}

func (r *recorder) advance(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.horizon = t
}

func (r *recorder) closed(now time.Time) []Interval {
	r.mu.Lock()
	defer r.mu.Unlock()
	var windows []Interval
	for {
		end := time.Unix(r.next, 0).Add(WindowLength)
		if now.Before(end) || r.horizon.Before(end) {
			return windows
		}
		if w := r.open[r.next]; w != nil && w.pending > 0 {
			return windows
		}
		windows = append(windows, r.write())
	}
}

func (r *recorder) final(now time.Time) []Interval {
	windows := r.closed(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if stall, ok := r.stalls.end(now); ok {
		w := r.at(now)
		w.window.Stalls = append(w.window.Stalls, stall)
	}
	for r.next <= windowStart(now) {
		w := r.write()
		if now.Before(w.EndTime()) {
			w.Until = now.UnixMicro()
		}
		windows = append(windows, w)
	}
	return windows
}

func (r *recorder) write() Interval {
	open := r.at(time.Unix(r.next, 0))
	delete(r.open, r.next)
	if !open.lastOK.IsZero() {
		r.carried = open.lastOK
	}
	w := open.window
	for i := range w.Stalls {
		w.Stalls[i].Behind = r.stalls.behindIn(w.Stalls[i])
	}
	w.Seq, w.Latency, w.LastOK = r.seq, encodeLatency(open.latencies), r.carried.UnixMicro()
	r.seq++
	r.next++
	return w
}
