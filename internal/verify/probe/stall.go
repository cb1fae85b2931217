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
	// Late is for how much of that the prober itself was late: its machine was busy or asleep, and how the target was is not known.
	Late int64 `json:"y,omitempty"`
}

// StartTime is when it began.
func (s Stall) StartTime() time.Time { return time.UnixMicro(s.Start) }

// EndTime is when it was over.
func (s Stall) EndTime() time.Time { return time.UnixMicro(s.Start + s.Length) }

// Duration is how long it was.
func (s Stall) Duration() time.Duration { return time.Duration(s.Length) * time.Microsecond }

// LateBy is for how much of it the prober itself was late.
func (s Stall) LateBy() time.Duration { return time.Duration(s.Late) * time.Microsecond }

// Stalls lists the stalls, in the order in which they ended.
func (s Series) Stalls() []Stall {
	var stalls []Stall
	for _, w := range s {
		stalls = append(stalls, w.Stalls...)
	}
	return stalls
}

// stalls finds the stalls of one target. It goes by when requests were sent and not by when they were due: what the prober was late
// is not the target's. A target that keeps requests from being sent has at least one waiting, from which the stall counts.
type stalls struct {
	// from is the shortest that counts.
	from time.Duration
	// waiting is when the first request after the latest success was sent, sent when the latest one was.
	waiting, sent time.Time
	// late are the latest stretches in which the prober was late.
	late []span
}

type span struct{ from, to time.Time }

// lateFrom is what a timer may be late without being noted, keptLate how many times that it was later are remembered.
const (
	lateFrom = 10 * time.Millisecond
	keptLate = 256
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

// succeed returns the stall that an answer has ended, if it did.
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

// end returns the stall that lasts at the end.
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

// wokeLate notes that the prober should have done something at one time and came to it at another.
func (s *stalls) wokeLate(due, woke time.Time) {
	if woke.Sub(due) < lateFrom {
		return
	}
	if len(s.late) == keptLate {
		s.late = append(s.late[:0], s.late[1:]...)
	}
	s.late = append(s.late, span{due, woke})
}

// lateIn is how long the prober was late in a stretch. It must only be asked when the stretch has long been over: the prober may note
// an answer before it notes that it slept.
func (s *stalls) lateIn(stall Stall) int64 {
	var sum int64
	for _, l := range s.late {
		from, to := max(l.from.UnixMicro(), stall.Start), min(l.to.UnixMicro(), stall.Start+stall.Length)
		sum += max(0, to-from)
	}
	return sum
}
