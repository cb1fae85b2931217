package probe

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/replumb/replumb/internal/engine/fault"
)

// TestLateAnswers: an answer within a second is one for which nothing was sent twice.
func TestLateAnswers(t *testing.T) {
	for _, tt := range []struct {
		takes time.Duration
		late  bool
	}{
		{LateAfter, false}, {LateAfter + time.Millisecond, true}, {3 * time.Second, true},
	} {
		stats := statsOf(t, probeFake(t, Target{Name: "t", Rate: 1}, 5*time.Second, func(time.Duration) time.Duration { return tt.takes }))
		want := 0
		if tt.late {
			want = 5
		}
		if stats.OK != 5 || stats.Failed != 0 || stats.NotMeasured != 0 || stats.Late != want {
			t.Errorf("answers take %v: %+v, want %d late", tt.takes, stats, want)
		}
	}
}

// TestProberStandsStill: what a request met with while its prober stood still says nothing of the
// target, and what it met with otherwise counts.
func TestProberStandsStill(t *testing.T) {
	const timeout = 5 * time.Second
	stood := []span{{at(1000), at(4000)}}
	for _, tt := range []struct {
		name     string
		from, to time.Time
		err      error
		want     Interval
	}{
		{"an answer before", at(500), at(600), nil, Interval{Sent: 1, OK: 1}},
		{"an answer that came meanwhile", at(900), at(4010), nil, Interval{Sent: 1, OK: 1}},
		{"an answer that was late without that", at(900), at(5200), nil, Interval{Sent: 1, OK: 1, Late: 1}},
		{"a time-out that ended meanwhile", at(900), at(5900), context.DeadlineExceeded, Interval{NotMeasured: 1}},
		{"a time-out of which a little fell into it", at(3500), at(8500), context.DeadlineExceeded, Interval{Sent: 1, Failed: 1}},
		{"a refusal", at(900), at(4010), failf(ConnectRefused, "no"), Interval{Sent: 1, Failed: 1}},
		{"no port left", at(500), at(500), failf(OwnLimit, "no"), Interval{NotMeasured: 1}},
	} {
		r := &run{
			target:   Target{Name: "t", Timeout: Duration(timeout)},
			still:    &standstill{past: stood},
			recorder: newRecorder(Target{Name: "t", Rate: 1}, at(0)),
		}
		r.recorder.begin(tt.from, tt.from)
		r.record(tt.from, tt.from, tt.to, false, tt.err)
		r.recorder.advance(at(99_000))
		w := r.recorder.closed(at(10_000))[windowStart(tt.from)-windowStart(at(0))]
		got := Interval{Sent: w.Sent, OK: w.OK, Failed: w.Failed, Late: w.Late, NotMeasured: w.NotMeasured}
		if got.Sent != tt.want.Sent || got.OK != tt.want.OK || got.Failed != tt.want.Failed || got.Late != tt.want.Late ||
			got.NotMeasured != tt.want.NotMeasured {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestStandstill: the timer is overdue before it is heard, and what the prober does beside waiting
// is no standstill.
func TestStandstill(t *testing.T) {
	s := &standstill{}
	s.waitFor(at(250))
	if d := s.within(at(0), at(340)); d != 0 {
		t.Errorf("a little late is a standstill of %v", d)
	}
	if d := s.within(at(0), at(2250)); d != 2*time.Second {
		t.Errorf("before the timer is heard: %v", d)
	}
	s.heard(at(2250))
	if d := s.within(at(0), at(9000)); d != 2*time.Second {
		t.Errorf("afterwards: %v", d)
	}
	for i := range 2 * keptStandstills {
		s.waitFor(at(10_000 + 1000*i))
		s.heard(at(10_000 + 1000*i + 200))
	}
	if len(s.past) != keptStandstills || s.within(at(0), at(9000)) != 0 {
		t.Errorf("%d are kept", len(s.past))
	}
}

// TestSleepingProber: a prober that could not send in time neither sends all at once afterwards,
// nor counts what it did not send as lost.
func TestSleepingProber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &run{
			target: Target{Name: "t", Rate: 10, MaxInFlight: 100, Timeout: Duration(time.Second)}, still: &standstill{},
			connect: func(Target, hooks) requester {
				return &fake{began: time.Now(), delay: func(time.Duration) time.Duration { return time.Millisecond }}
			},
		}
		r.start(time.Now().Add(-6*time.Second), nil, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 950*time.Millisecond)
		defer cancel()
		r.pace(ctx, time.Now().Add(-5*time.Second)) // as if it had been stopped for as long
		total := statsOf(t, r.recorder.final(time.Now()))
		if total.NotMeasured < 39 || total.NotMeasured > 41 || total.OK != total.Sent || total.OK < 19 || total.OK > 21 {
			t.Errorf("%+v", total)
		}
	})
}

// TestAskedAgain: a look-up whose question was sent twice is a late one, however soon the answer to
// the second came.
func TestAskedAgain(t *testing.T) {
	for _, lost := range []int{0, 1} {
		server := forgetful(t, lost)
		requester := newRequester(Target{Name: "t", Kind: DNS, Address: "good.test.", Resolver: server}, hooks{})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ctx, try := withTry(ctx)
		if err := requester.do(ctx); err != nil || try.again != (lost > 0) {
			t.Errorf("%d datagrams lost: asked again %v, %v", lost, try.again, err)
		}
	}
}

// forgetful is a name server that answers the first questions with SERVFAIL, which has Go's
// resolver ask again at once.
func forgetful(t *testing.T, first int) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil {
				continue
			}
			m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
			if first > 0 {
				first--
				m.RCode = dnsmessage.RCodeServerFailure
			} else if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{
					{
						Header: dnsmessage.ResourceHeader{
							Name:  q.Name,
							Type:  q.Type,
							Class: q.Class,
							TTL:   1,
						},
						Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}},
					},
				}
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

// TestMeasured: a run in which more than one in a thousand requests could not be measured says
// nothing, but a loss is told all the same.
func TestMeasured(t *testing.T) {
	for _, tt := range []struct {
		summary Summary
		code    int
	}{
		{Summary{Sent: 999, NotMeasured: 1, Targets: []TargetSummary{{Sent: 1}}}, fault.ExitDone},
		{Summary{Sent: 998, NotMeasured: 1, Targets: []TargetSummary{{Sent: 1}}}, fault.ExitNotMeasured},
		{Summary{NotMeasured: 1}, fault.ExitNotMeasured},
		{Summary{Sent: 1, NotMeasured: 9, Failed: 1}, fault.ExitBudget},
	} {
		code := fault.ExitDone
		if err := tt.summary.Err(); err != nil {
			code, _ = fault.ExitCode(err)
			if errors.As(err, new(*NotMeasuredError)) && fault.Advice(err) == "" {
				t.Errorf("%+v: no advice", tt.summary)
			}
		}
		if code != tt.code {
			t.Errorf("%+v: exit code %d, want %d", tt.summary, code, tt.code)
		}
	}
}

func statsOf(t *testing.T, s Series) Stats {
	t.Helper()
	stats, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return stats
}
