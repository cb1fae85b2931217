package probe

import "time"

// minStall is the shortest stall reported; shorter ones are common on busy machines.
const minStall = 50 * time.Millisecond

// Stall is a stretch of requests without a good answer, whether they waited or failed. It lasts
// from the first of them to the first good answer, true to the time between two requests. A single
// loss is no stall, so the shortest is two requests or 50 ms, which is the same at a rate of 40 and
// more.
type Stall struct {
	// Start is in microseconds since the Unix epoch, Length in microseconds.
	Start  int64 `json:"s"`
	Length int64 `json:"l"`
	// Behind is how long the prober itself was behind its schedule, when the target's state is
	// unknown.
	Behind int64 `json:"y,omitempty"`
}

func (s Stall) StartTime() time.Time    { return time.UnixMicro(s.Start) }
func (s Stall) EndTime() time.Time      { return time.UnixMicro(s.Start + s.Length) }
func (s Stall) Duration() time.Duration { return time.Duration(s.Length) * time.Microsecond }

// BehindFor is for how much of it the prober itself was behind its schedule.
func (s Stall) BehindFor() time.Duration { return time.Duration(s.Behind) * time.Microsecond }

func (s Series) Stalls() []Stall {
	var stalls []Stall
	for _, w := range s {
		stalls = append(stalls, w.Stalls...)
	}
	return stalls
}

// stalls finds the stalls of one target, by the times when requests were sent: delays of the prober
// are not the target's. A target that blocks sending has at least one request waiting.
type stalls struct {
	// from is the shortest that counts.
	from time.Duration
	// waiting is the first request since the latest success, sent the latest one.
	waiting, sent time.Time
	// behind are the latest stretches in which the prober was behind its schedule.
	behind []span
}

// behindFrom is the smallest delay noted, keptBehind how many are kept.
const (
	behindFrom = 10 * time.Millisecond
	keptBehind = 256
)

func newStalls(interval time.Duration) stalls {
	return stalls{from: max(minStall, 2*interval)}
}

func (s *stalls) begin(at time.Time) {
	if s.waiting.IsZero() {
		s.waiting = at
	}
	s.sent = at
}

func (s *stalls) succeed(at time.Time) (Stall, bool) {
	since := s.waiting
	if since.IsZero() || since.After(at) {
		return Stall{}, false
	}
	s.waiting = time.Time{}
	if s.sent.After(at) { // it was sent while the answer was on its way to be noted
		s.waiting = s.sent
	}
	return s.between(since, at)
}

func (s *stalls) end(at time.Time) (Stall, bool) {
	if s.waiting.IsZero() {
		return Stall{}, false
	}
	return s.between(s.waiting, at)
}

func (s *stalls) between(from, to time.Time) (Stall, bool) {
	length := to.Sub(from)
	return Stall{Start: from.UnixMicro(), Length: length.Microseconds()}, length >= s.from
}

func (s *stalls) woke(due, at time.Time) {
	if at.Sub(due) < behindFrom {
		return
	}
	if len(s.behind) == keptBehind {
		s.behind = append(s.behind[:0], s.behind[1:]...)
	}
	s.behind = append(s.behind, span{due, at})
}

// behindIn is how long the prober was behind in a stretch. Ask long after the stretch: an answer
// may be noted before the sleep.
func (s *stalls) behindIn(stall Stall) int64 {
	var sum time.Duration
	for _, b := range s.behind {
		sum += overlap(b, span{stall.StartTime(), stall.EndTime()})
	}
	return sum.Microseconds()
}
