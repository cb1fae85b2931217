package htmlreport

import (
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/reporting/journal"
)

const (
	stateMoved    = "moved"
	stateReturned = "returned"

	// Of these the journal does not know more than status.
	stateBridged   = "bridged"
	stateHalfMoved = "half-hopped"
	statePinned    = "pinned"
)

// services are those of the input, with moves from the journal, which finish takes off them.
func services(in Input) []Service {
	if !in.Words.Counts {
		return nil
	}
	all := map[string]*Service{}
	for _, s := range in.Services {
		all[s.Name] = &s
	}
	for _, m := range in.History.Moves {
		s := all[m.Service]
		if s == nil {
			s = &Service{Name: m.Service}
			all[m.Service] = s
		}
		s.apply(m)
	}
	out := make([]Service, 0, len(all))
	for _, s := range all {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Placed are Services as status has them, with what they say themselves of when they arrived.
func Placed(annotated, placed []Service) []Service {
	arrived := map[string]*time.Time{}
	for _, s := range annotated {
		arrived[s.Name] = s.At
	}
	for i := range placed {
		if placed[i].State == stateMoved {
			placed[i].At = arrived[placed[i].Name]
		}
	}
	return placed
}

// apply takes over a move, unless the Service itself has a move that is not over.
func (s *Service) apply(m journal.Move) {
	at, state := m.At, stateMoved
	if s.At != nil && s.From == m.To && s.To == m.From {
		state = stateReturned
	} else {
		s.From, s.To = m.From, m.To
	}
	s.At, s.Seconds, s.Strategy = &at, m.Seconds, m.Strategy
	switch s.State {
	case stateBridged, stateHalfMoved, statePinned:
	default:
		s.State = state
	}
}
