package dnscutover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

const (
	// probePatience is how long a load balancer may take until it answers as it should.
	probePatience = 2 * time.Minute
	// apart is how long a load balancer has to be without new connections.
	apart = 5 * time.Second
	// quietPatience is the limit for clients to leave, after caches have expired.
	quietPatience = time.Hour
)

func prefix(to engine.Direction) string {
	if to == engine.Backward {
		return "back/"
	}
	return ""
}

// ProbeStep asks the side that a name is about to lead to, until it does.
type ProbeStep struct {
	lead *PairedName
	to   engine.Direction
}

var (
	_ engine.Waiter = (*ProbeStep)(nil)
	_ engine.Timed  = (*ProbeStep)(nil)
)

func (s *ProbeStep) ID() string { return prefix(s.to) + "probe/" + s.lead.id() }

func (s *ProbeStep) Title() string {
	_, to := s.lead.ends(s.to)
	return fmt.Sprintf("Ask %s for %s", strings.Join(to, ", "), s.lead.Name.Name)
}

func (*ProbeStep) Waits() {}

func (s *ProbeStep) Deadline() time.Duration {
	if s.lead.Patience > 0 {
		return s.lead.Patience
	}
	return probePatience
}

// State is done for a name that leads there or has no probe. Earlier answers do not count.
func (s *ProbeStep) State(ctx context.Context) (engine.State, error) {
	if s.lead.Probe.Mode == v1alpha1.ProbeOff {
		return engine.Done, nil
	}
	arrived, err := s.lead.arrived(ctx, s.to)
	switch {
	case err == nil && arrived:
		return engine.Done, nil
	case err == nil, engine.Retryable(err):
		return engine.Pending, nil
	}
	var whole *dnsrecords.Error
	if errors.As(err, &whole) {
		return engine.Blocked, err
	}
	return engine.Unknown, err
}

// Do does nothing: Verify asks.
func (*ProbeStep) Do(context.Context) error { return nil }

func (s *ProbeStep) Verify(ctx context.Context) error {
	from, to := s.lead.ends(s.to)
	if err := s.lead.Probe.AskBoth(ctx, from, to, s.lead.Name.Name); err != nil {
		return engine.NotYet("%w", err)
	}
	return nil
}

// QuietRequest is what the action of spec.mirror.redirect.quiet gets.
type QuietRequest struct {
	Migration string `json:"migration"`
	// Side that has to fall silent.
	Side v1alpha1.ServingSide `json:"side"`
	// Names that led there, and the addresses or names of its load balancers.
	Names     []string `json:"names"`
	Addresses []string `json:"addresses"`
}

type quietAnswer struct {
	NewConnections *int64 `json:"newConnections"`
}

// QuietStep repeats an action until it has reported twice in a row, seconds apart, that there are
// no new connections.
type QuietStep struct {
	// Name is the ID of the step.
	Name    string
	Action  v1alpha1.Action
	Request QuietRequest
	// Apart is how long there have to be none. Default: 5s.
	Apart time.Duration
	// Patience is how long that may take to begin. Default: an hour.
	Patience time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time

	// since is when there was first none. Unset, as long as there are some.
	since time.Time
}

var (
	_ engine.Waiter = (*QuietStep)(nil)
	_ engine.Timed  = (*QuietStep)(nil)
)

func (s *QuietStep) ID() string { return s.Name }

func (s *QuietStep) Title() string {
	return fmt.Sprintf("Wait until the load balancer of the %s has no new connections", strings.ToLower(string(s.Request.Side)))
}

func (*QuietStep) Waits() {}

func (s *QuietStep) Deadline() time.Duration {
	if s.Patience > 0 {
		return s.Patience
	}
	return quietPatience
}

// State is pending: no one but the action knows.
func (*QuietStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do does nothing: Verify asks.
func (*QuietStep) Do(context.Context) error { return nil }

// Verify retries errors: silence without an answer proves nothing.
func (s *QuietStep) Verify(ctx context.Context) error {
	answer := quietAnswer{}
	err := callout.Call(ctx, s.Action, s.Request, &answer)
	if err == nil && (answer.NewConnections == nil || *answer.NewConnections < 0) {
		err = fmt.Errorf(`%s: its answer has no newConnections: it has to be such as {"newConnections": 0}`, callout.Name(s.Action))
	}
	if err != nil {
		s.since = time.Time{}
		return engine.NotYet("%w", err)
	}
	if n := *answer.NewConnections; n > 0 {
		s.since = time.Time{}
		return engine.NotYet("the %s has %d new connections", strings.ToLower(string(s.Request.Side)), n)
	}
	now := s.now()
	if s.since.IsZero() {
		s.since = now
	}
	if left := s.apart() - now.Sub(s.since); left > 0 || now.Equal(s.since) {
		return engine.NotYet("the %s has no new connections; it has to be so for %s", strings.ToLower(string(s.Request.Side)), s.apart())
	}
	return nil
}

func (s *QuietStep) apart() time.Duration {
	if s.Apart > 0 {
		return s.Apart
	}
	return apart
}

func (s *QuietStep) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}
