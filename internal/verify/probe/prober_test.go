package probe

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake answers after a delay that may depend on when it was asked.
type fake struct {
	began time.Time
	delay func(sinceBegin time.Duration) time.Duration
}

func (f *fake) close() {}

func (f *fake) do(ctx context.Context) error {
	timer := time.NewTimer(f.delay(time.Since(f.began)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// probeFake runs a prober on fake time for d and returns what it reported.
func probeFake(t *testing.T, target Target, d time.Duration, delay func(time.Duration) time.Duration) Series {
	t.Helper()
	var series Series
	synctest.Test(t, func(t *testing.T) {
		prober := New(Config{Targets: []Target{target.withDefaults("")}}, func(w Interval) (err error) {
			series, err = series.Append(w)
			return err
		})
		prober.runs[0].connect = func(Target, hooks) requester {
			return &fake{began: time.Now(), delay: delay}
		}
		// Off the tick, so that the last request is not a matter of luck.
		ctx, cancel := context.WithTimeout(t.Context(), d-time.Millisecond)
		defer cancel()
		if err := prober.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return series
}

func TestProberKeepsSchedule(t *testing.T) {
	series := probeFake(t, Target{Name: "t", Rate: 40}, 5*time.Second, func(time.Duration) time.Duration {
		return 3 * time.Millisecond
	})
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Sent != 200 || stats.OK != 200 || stats.Failed != 0 {
		t.Errorf("stats = %+v", stats)
	}
	near(t, "p99", stats.Percentile(99), 3*time.Millisecond)
	if stats.LongestGap > 28*time.Millisecond {
		t.Errorf("longest gap = %v", stats.LongestGap)
	}
}

// endsLate is a context whose end comes after its deadline, as on a machine that is busy.
type endsLate struct {
	context.Context
	deadline time.Time
}

func (c endsLate) Deadline() (time.Time, bool) { return c.deadline, true }

func TestNoRequestIsDueAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var series Series
		prober := New(Config{Targets: []Target{Target{Name: "t", Rate: 40}.withDefaults("")}}, func(w Interval) (err error) {
			series, err = series.Append(w)
			return err
		})
		prober.runs[0].connect = func(Target, hooks) requester {
			return &fake{began: time.Now(), delay: func(time.Duration) time.Duration { return 0 }}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer cancel()
		if err := prober.Run(endsLate{ctx, time.Now().Add(time.Second)}); err != nil {
			t.Fatal(err)
		}
		stats, err := series.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if stats.Sent != 40 {
			t.Errorf("%d requests were sent instead of 40", stats.Sent)
		}
	})
}

// With one slot and a server that stalls once for 500 ms, the requests due meanwhile are sent late;
// their latency must show it, or the stall would look like one slow request.
func TestLatencyCountsFromTheSchedule(t *testing.T) {
	target := Target{Name: "t", Rate: 100, MaxInFlight: 1}
	series := probeFake(t, target, 2*time.Second, func(since time.Duration) time.Duration {
		if since >= time.Second && since < 1001*time.Millisecond {
			return 500 * time.Millisecond
		}
		return 0
	})
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Failed != 0 || stats.Sent != 200 {
		t.Errorf("stats = %+v", stats)
	}
	if p := stats.Percentile(80); p < 50*time.Millisecond {
		t.Errorf("p80 = %v: 50 requests waited up to 500 ms", p)
	}
	near(t, "longest gap", stats.LongestGap, 510*time.Millisecond)
}

func TestStuckSlotsAreFailuresNotSilence(t *testing.T) {
	target := Target{Name: "t", Rate: 10, MaxInFlight: 2, Timeout: Duration(time.Second)}
	series := probeFake(t, target, 5*time.Second, func(time.Duration) time.Duration { return time.Hour })
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.OK != 0 || stats.Failed != stats.Sent || stats.Sent+stats.NotMeasured < 40 {
		t.Errorf("stats = %+v", stats)
	}
	if stats.NotMeasured == 0 || stats.Errors[Timeout] == 0 {
		t.Errorf("errors = %v, %d not measured", stats.Errors, stats.NotMeasured)
	}
	if stats.LongestGap < 4*time.Second {
		t.Errorf("longest gap = %v, want the whole run", stats.LongestGap)
	}
}

func TestShutdownWaitsForRequestsUnderWay(t *testing.T) {
	series := probeFake(t, Target{Name: "t", Rate: 10}, time.Second, func(time.Duration) time.Duration {
		return 700 * time.Millisecond
	})
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.OK != stats.Sent || stats.Failed != 0 || stats.Sent != 10 {
		t.Errorf("stats = %+v", stats)
	}
}

// collector gathers windows of a real prober and lets a test wait for what it wants to see.
type collector struct {
	mu      sync.Mutex
	series  Series
	changed chan struct{}
}

func newCollector() *collector { return &collector{changed: make(chan struct{}, 1)} }

func (c *collector) emit(w Interval) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.series, err = c.series.Append(w); err != nil {
		return err
	}
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return nil
}

// await returns when a window from the from-th on satisfies want, with the number of windows seen
// so far.
func (c *collector) await(t *testing.T, what string, from int, want func(Interval) bool) int {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		c.mu.Lock()
		for _, w := range c.series[min(from, len(c.series)):] {
			if want(w) {
				defer c.mu.Unlock()
				return len(c.series)
			}
		}
		c.mu.Unlock()
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("never saw %s; windows: %+v", what, c.series)
		}
	}
}

// probe runs a real prober in the background; the returned function ends it and gives what it
// reported.
func probe(t *testing.T, target Target) (*collector, func() Series) {
	t.Helper()
	config, err := Config{Targets: []Target{target}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(config, c.emit).Run(ctx) }()
	stop := sync.OnceValue(func() Series {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return c.series
	})
	t.Cleanup(func() { stop() })
	return c, stop
}
