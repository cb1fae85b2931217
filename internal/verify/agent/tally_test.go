package agent

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

func aTarget(address string) target {
	return target{Target: probe.Target{Name: "host/x", Kind: probe.HTTP, Address: address}, kind: v1alpha1.RequestHTTP, shown: address}
}

func at(seconds float64) time.Time { return time.UnixMicro(1000e6 + int64(seconds*1e6)) }

func refused() *probe.Failure {
	return &probe.Failure{Class: probe.ConnectRefused, Err: errors.New("connection refused")}
}

// window is a second in which requests succeeded, and others failed.
func window(second int64, ok, failed int) probe.Interval {
	w := probe.Interval{Start: 1000 + second, Sent: ok + failed, OK: ok, Failed: failed}
	if failed > 0 {
		w.Example, w.FirstFailure, w.LastFailure = "window", (1000+second)*1e6, (1000+second)*1e6+5e5
	}
	return w
}

func drawn(t *testing.T, from *tally) v1alpha1.ProbeReport {
	t.Helper()
	r, err := from.draw()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantCounts(t *testing.T, r v1alpha1.ProbeReport, sent, failed int64) {
	t.Helper()
	if r.Sent != sent || r.Failed != failed {
		t.Errorf("%d of %d failed, want %d of %d", r.Failed, r.Sent, failed, sent)
	}
	lost := 0
	for _, l := range r.Losses {
		lost += l.Failed
	}
	if int64(lost) != failed && len(r.Losses) < most {
		t.Errorf("losses add up to %d of %d: %+v", lost, failed, r.Losses)
	}
}

// TestTallyCountsFailuresOnce tells of a failure before and after its window, and only by either.
func TestTallyCountsFailuresOnce(t *testing.T) {
	for _, order := range [][]string{{"seen", "window"}, {"window", "seen"}, {"window"}} {
		tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
		a := tally.ask(aTarget("a:1"), at(0))
		for i, what := range order {
			if what == "seen" {
				a.failed(at(0.2), refused(), at(0.3))
			} else {
				a.window(window(0, 4, 1))
			}
			sent := int64(1)
			if slices.Contains(order[:i+1], "window") {
				sent = 5
			}
			r := drawn(t, tally)
			wantCounts(t, r, sent, 1)
			tally.retain()
		}
	}
}

func TestTallyStretches(t *testing.T) {
	tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
	a := tally.ask(aTarget("a:1"), at(0.7))
	if r := drawn(t, tally); len(r.Recent) != 0 {
		t.Errorf("stretches before any: %+v", r.Recent)
	}
	tally.retain()
	for s := range int64(200) {
		a.window(window(s, 5, 0))
		r := drawn(t, tally)
		if s%3 == 0 {
			tally.retain()
		} // else it could not be written
		wantCounts(t, r, 5*(s+1), 0)
		for i, w := range r.Recent {
			if w.Sent != 5*int(w.End-w.Start) || (i > 0 && w.Start != r.Recent[i-1].End) {
				t.Fatalf("second %d: stretch %d of %+v", s, i, r.Recent)
			}
		}
		if last := r.Recent[len(r.Recent)-1]; last.End != 1000+s+1 || len(r.Recent) > most {
			t.Fatalf("second %d: %+v", s, r.Recent)
		}
	}
	if n := len(tally.seconds); n > kept+10 {
		t.Errorf("%d seconds are kept", n)
	}
}

func TestTallyLosses(t *testing.T) {
	tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
	a := tally.ask(aTarget("a:1"), at(0))
	for s := range int64(100) {
		failed := 0
		if s == 3 || s == 4 || s == 7 {
			a.failed(at(float64(s)+0.25), refused(), at(float64(s)+0.3))
			failed = 1
		}
		a.window(window(s, 5-failed, failed))
		r := drawn(t, tally)
		tally.retain()
		if s < 8 {
			continue
		}
		if len(r.Losses) != 2 || r.Losses[0].Failed != 2 || r.Losses[1].Failed != 1 || !r.Losses[0].Start.Time.Equal(at(3.25)) ||
			!r.Losses[0].End.Time.Equal(at(4.25)) || r.Losses[0].Error != "connect-refused: connection refused" {
			t.Fatalf("second %d: losses %+v", s, r.Losses)
		}
	}
	for s := int64(100); s < 200; s += 2 {
		a.window(window(s, 5, 1))
		a.window(window(s+1, 5, 0))
	}
	r := drawn(t, tally)
	if len(r.Losses) != most || !r.Losses[most-1].Start.Time.Equal(at(198)) || r.Failed != 53 {
		t.Errorf("%d failed, %d losses", r.Failed, len(r.Losses))
	}
}

// TestTallyTakenAway has requests fail around the end of a target.
func TestTallyTakenAway(t *testing.T) {
	for _, tt := range []struct {
		name    string
		forgive bool
		failed  int64
	}{{"nothing is bound to answer", true, 2}, {"only the agent ends", false, 3}} {
		t.Run(tt.name, func(t *testing.T) {
			tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
			a := tally.ask(aTarget("a:1"), at(0))
			a.failed(at(9.0), refused(), at(9.1)) // before
			a.takeAway(at(10), tt.forgive)
			a.failed(at(6.0), refused(), at(11)) // long under way
			a.failed(at(9.9), refused(), at(11)) // under way, for less than others may know earlier
			for s := range int64(11) {
				failed := map[int64]int{6: 1, 9: 2}[s]
				a.window(window(s, 5-failed, failed))
			}
			a.done()
			r := drawn(t, tally)
			wantCounts(t, r, 52+tt.failed, tt.failed)
			if tally.gone(at(10)) || !tally.gone(at(11)) {
				t.Error("it is not gone since 10")
			}
		})
	}
}

// TestTallyOfAnotherTarget goes on counting when the target changes, while requests to the one
// before are under way, and after a pause.
func TestTallyOfAnotherTarget(t *testing.T) {
	tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
	first := tally.ask(aTarget("a:1"), at(0))
	first.window(window(0, 5, 0))
	first.takeAway(at(1.5), true)
	second := tally.ask(aTarget("b:1"), at(1.5))
	second.window(window(1, 2, 0))
	second.window(window(2, 5, 0))
	if r := drawn(t, tally); r.Address != "b:1" || r.Recent[0].End != 1001 {
		t.Errorf("reported before the windows of the first have come: %+v", r)
	}
	first.window(window(1, 3, 0))
	first.done()
	r := drawn(t, tally)
	tally.retain()
	wantCounts(t, r, 15, 0)
	if len(r.Recent) != 1 || r.Recent[0] != (v1alpha1.ProbeWindow{Start: 1000, End: 1003, Sent: 15}) {
		t.Errorf("stretches %+v", r.Recent)
	}
	second.takeAway(at(3), true)
	second.done()
	if r = drawn(t, tally); len(r.Recent) != 1 || tally.gone(at(3)) {
		t.Errorf("after the end %+v", r.Recent)
	}
	third := tally.ask(aTarget("c:1"), at(20))
	third.window(window(20, 5, 0))
	r = drawn(t, tally)
	wantCounts(t, r, 20, 0)
	if len(r.Recent) != 1 || r.Recent[0].Start != 1020 {
		t.Errorf("stretches with a hole: %+v", r.Recent)
	}
}

// TestHooks runs a real prober: what is reported when it is seen, and what windows report, are the
// same failures, those that were not sent included.
func TestHooks(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	config, err := probe.Config{Targets: []probe.Target{
		{
			Name:        "t",
			Kind:        probe.UDP,
			Address:     silent.LocalAddr().String(),
			Rate:        20,
			Timeout:     probe.Duration(300 * time.Millisecond),
			MaxInFlight: 1,
		},
	}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	seen, windows, timeouts := map[int64]int{}, map[int64]int{}, 0
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	prober := probe.New(config, func(w probe.Interval) error { windows[w.Start] += w.Failed; return nil })
	prober.OnFailure = func(_ string, scheduled time.Time, failure *probe.Failure) {
		mu.Lock()
		defer mu.Unlock()
		seen[scheduled.Unix()]++
		if failure.Class == probe.Timeout {
			timeouts++
		}
		if timeouts > 2 {
			cancel()
		}
	}
	if err := prober.Run(ctx); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(windows, func(_ int64, n int) bool { return n == 0 })
	if !maps.Equal(seen, windows) {
		t.Errorf("seen %v, in windows %v", seen, windows)
	}
}
