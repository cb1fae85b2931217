package probe

import "time"

// minStall is the shortest stall that is reported. Shorter ones are everyday life on a busy machine.
const minStall = 50 * time.Millisecond

// Stall is a stretch in which requests were sent and none was answered well, whether they only waited or failed. It begins when the
// first of them was sent and ends with the first good answer, so it is true to the time between two requests: what was wrong began at
// most that much earlier, and ended when the stall did. It takes two requests to tell a stall from a single one that was lost, and
// so stalls shorter than two requests are apart, or 50 ms, are not reported. With a rate of 40 or more, that is 50 ms.
type Stall struct {
	// Start is in microseconds since the Unix epoch, Length in microseconds.
	Start  int64 `json:"s"`
	Length int64 `json:"l"`
	// Behind is for how much of that the prober itself was behind its schedule: its machine was busy or asleep, and how the target was is not
	// known.
	Behind int64 `json:"y,omitempty"`
}

// StartTime is when it began.
func (s Stall) StartTime() time.Time { return time.UnixMicro(s.Start) }

// EndTime is when it was over.
func (s Stall) EndTime() time.Time { return time.UnixMicro(s.Start + s.Length) }

// Duration is how long it was.
func (s Stall) Duration() time.Duration { return time.Duration(s.Length) * time.Microsecond }

// BehindFor is for how much of it the prober itself was behind its schedule.
func (s Stall) BehindFor() time.Duration { return time.Duration(s.Behind) * time.Microsecond }

// Stalls lists the stalls, in the order in which they ended.
func (s Series) Stalls() []Stall {
	var stalls []Stall
	for _, w := range s {
		stalls = append(stalls, w.Stalls...)
	}
	return stalls
}

// stalls finds the stalls of one target. It goes by when requests were sent and not by when they were due: for how long
// the prober was behind is not the target's doing. A target that keeps requests from being sent has at least one waiting, from which the stall counts.
type stalls struct {
	// from is the shortest that counts.
	from time.Duration
	// waiting is when the first request after the latest success was sent, sent when the latest one was.
	waiting, sent time.Time
	// behind are the latest stretches in which the prober was behind its schedule.
	behind []span
}

// behindFrom is what the prober may be behind without being noted, keptBehind how many times that it was more are remembered.
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

// woke notes that the prober, which was to do something at one time, came to it at another.
func (s *stalls) woke(due, at time.Time) {
	if at.Sub(due) < behindFrom {
		return
	}
	if len(s.behind) == keptBehind {
		s.behind = append(s.behind[:0], s.behind[1:]...)
	}
	s.behind = append(s.behind, span{due, at})
}

// behindIn is for how long the prober was behind in a stretch. It must only be asked when the stretch has long been over: the prober may
// note an answer before it notes that it slept.
func (s *stalls) behindIn(stall Stall) int64 {
	var sum time.Duration
	for _, b := range s.behind {
		sum += overlap(b, span{stall.StartTime(), stall.EndTime()})
	}
	return sum.Microseconds()
}
