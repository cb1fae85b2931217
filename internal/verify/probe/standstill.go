package probe

import (
	"slices"
	"sync"
	"time"
)

const (
	// LateAfter marks good answers as late: a lost SYN is repeated after 1 s (RFC 6298, section 2),
	// so nothing was lost for an answer in time.
	LateAfter = time.Second
	// standsAfter is the delay of a timer that counts as a standstill.
	standsAfter = 100 * time.Millisecond
	// keptStandstills suffices, since requests only ask about their own time.
	keptStandstills = 64
)

// standstill notes when the prober stood still, stopped or without CPU, by the delay of a timer
// that always runs.
type standstill struct {
	mu sync.Mutex
	// due is when the timer is due; zero while the prober does something else.
	due  time.Time
	past []span
}

type span struct{ from, to time.Time }

func (s *standstill) waitFor(due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = due
}

func (s *standstill) heard(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at.Sub(s.due) >= standsAfter && !s.due.IsZero() {
		if len(s.past) == keptStandstills {
			s.past = slices.Delete(s.past, 0, 1)
		}
		s.past = append(s.past, span{s.due, at})
	}
	s.due = time.Time{}
}

// within is the standstill in a stretch, including an overdue timer that is not heard yet.
func (s *standstill) within(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum time.Duration
	for _, p := range s.past {
		sum += overlap(p, span{from, to})
	}
	if !s.due.IsZero() && to.Sub(s.due) >= standsAfter {
		sum += overlap(span{s.due, to}, span{from, to})
	}
	return sum
}

func overlap(a, b span) time.Duration {
	from, to := a.from, a.to
	if b.from.After(from) {
		from = b.from
	}
	if b.to.Before(to) {
		to = b.to
	}
	return max(0, to.Sub(from))
}
