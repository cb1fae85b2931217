package probe

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync"
	"testing"
	"time"
)

// frozen delays what is asked from one time to another until then; what is asked before and after
// is answered in latency.
func frozen(from, to, latency time.Duration) func(time.Duration) time.Duration {
	return func(since time.Duration) time.Duration {
		if since >= from && since < to {
			return to - since + latency
		}
		return latency
	}
}

// TestStallIsAsLongAsTheFreeze holds stalls against freezes of known lengths, to 10 ms, at several
// rates and latencies, whether requests outlive the freeze or time out in it.
func TestStallIsAsLongAsTheFreeze(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name                    string
		rate                    float64
		timeout, latency, froze time.Duration
		from                    time.Duration
		unseen                  bool
	}{
		{name: "requests wait", rate: 500, timeout: 5 * time.Second, latency: ms, from: 1201 * ms, froze: 100 * ms},
		{name: "requests time out", rate: 500, timeout: 30 * ms, latency: ms, from: 1201 * ms, froze: 100 * ms},
		{name: "answers slower than the schedule", rate: 500, timeout: 5 * time.Second, latency: 20 * ms, from: 1201 * ms, froze: 100 * ms},
		{name: "across two seconds", rate: 500, timeout: 5 * time.Second, latency: ms, from: 1950 * ms, froze: 100 * ms},
		{name: "two seconds", rate: 100, timeout: time.Second, latency: ms, from: 1203 * ms, froze: 2 * time.Second},
		{name: "short", rate: 500, timeout: time.Second, latency: ms, from: 1203 * ms, froze: 60 * ms},
		{name: "too short to be reported", rate: 500, timeout: time.Second, latency: ms, from: 1203 * ms, froze: 40 * ms, unseen: true},
		{name: "shorter than two requests", rate: 10, timeout: time.Second, latency: ms, from: 1190 * ms, froze: 100 * ms, unseen: true},
		{name: "nothing", rate: 10, timeout: time.Second, latency: 150 * ms, unseen: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := Target{Name: "t", Rate: tt.rate, Timeout: Duration(tt.timeout)}
			var begin time.Time
			var first sync.Once
			series := probeFake(t, target, 5*time.Second, func(since time.Duration) time.Duration {
				first.Do(func() { begin = time.Now().Add(-since) })
				return frozen(tt.from, tt.from+tt.froze, tt.latency)(since)
			})
			stalls := series.Stalls()
			if tt.unseen {
				if len(stalls) > 0 {
					t.Errorf("stalls = %+v", stalls)
				}
				return
			}
			if len(stalls) != 1 {
				t.Fatalf("stalls = %+v, want one", stalls)
			}
			// What was asked before is still answered.
			within10(t, "start", stalls[0].StartTime().Sub(begin), tt.from+tt.latency)
			within10(t, "length", stalls[0].Duration(), tt.froze)
			if stalls[0].Behind != 0 {
				t.Errorf("the prober was never late: %+v", stalls[0])
			}
			if stats, err := series.Stats(); err != nil || stats.LongestStall != stalls[0].Duration() {
				t.Errorf("longest = %v, %v", stats.LongestStall, err)
			}
		})
	}
}

func within10(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if off := got - want; off < -10*time.Millisecond || off > 10*time.Millisecond {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func TestStalls(t *testing.T) {
	tests := []struct {
		name string
		do   func(*stalls) []Stall
		want []Stall
	}{{
		name: "one request that fails is no stall",
		do: func(s *stalls) []Stall {
			s.begin(at(0))
			s.begin(at(20))
			return ended(s.succeed(at(21)))
		},
	}, {
		name: "from the first that waits to the first answer",
		do: func(s *stalls) []Stall {
			s.begin(at(0))
			first := ended(s.succeed(at(1)))
			s.begin(at(20))
			s.begin(at(40))
			s.begin(at(100))
			return append(first, append(ended(s.succeed(at(101))), ended(s.succeed(at(102)))...)...)
		},
		want: []Stall{{Start: at(20).UnixMicro(), Length: 81_000}},
	}, {
		name: "what was sent while an answer was noted waits on",
		do: func(s *stalls) []Stall {
			s.begin(at(0))
			s.begin(at(5))
			first := ended(s.succeed(at(4)))
			return append(first, ended(s.succeed(at(105)))...)
		},
		want: []Stall{{Start: at(5).UnixMicro(), Length: 100_000}},
	}, {
		name: "until the end",
		do: func(s *stalls) []Stall {
			s.begin(at(0))
			return ended(s.end(at(300)))
		},
		want: []Stall{{Start: at(0).UnixMicro(), Length: 300_000}},
	}, {
		name: "the prober's own sleep",
		do: func(s *stalls) []Stall {
			s.begin(at(0))
			stall, _ := s.succeed(at(100))
			s.woke(at(4), at(9)) // as timers do
			s.woke(at(20), at(80))
			s.woke(at(95), at(200))
			stall.Behind = s.behindIn(stall)
			return []Stall{stall}
		},
		want: []Stall{{Start: at(0).UnixMicro(), Length: 100_000, Behind: 65_000}},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStalls(20 * time.Millisecond)
			if got := tt.do(&s); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("stalls = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func ended(s Stall, ok bool) []Stall {
	if !ok {
		return nil
	}
	return []Stall{s}
}

func TestLatenessIsBounded(t *testing.T) {
	s := newStalls(time.Millisecond)
	for i := range 10 * keptBehind {
		s.woke(at(100*i), at(100*i+50))
	}
	if len(s.behind) != keptBehind {
		t.Errorf("%d are kept", len(s.behind))
	}
}

// TestFreezeOfAServer freezes a real server for 100 ms. It holds the stall against what the server
// noted itself: how long the machine took for anything is no matter.
func TestFreezeOfAServer(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var gate chan struct{} // while frozen
	var answered, held time.Time
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		closed := gate
		if closed == nil {
			answered = time.Now()
		} else {
			held = time.Now()
		}
		mu.Unlock()
		if closed != nil {
			<-closed
		}
	}))
	t.Cleanup(server.Close)
	c, stop := probe(t, Target{Name: "t", Kind: HTTP, Address: server.Listener.Addr().String(), Rate: 500})
	n := c.await(t, "a good second", 1, allGood)
	mu.Lock()
	gate = make(chan struct{})
	frozen, lastAnswered := time.Now(), answered
	mu.Unlock()
	<-time.After(100 * time.Millisecond)
	mu.Lock()
	thawed, lastHeld := time.Now(), held
	close(gate)
	gate = nil
	mu.Unlock()
	c.await(t, "a stall", n-1, func(w Interval) bool {
		for _, s := range w.Stalls {
			if s.StartTime().Before(thawed) && s.EndTime().After(frozen) {
				return true
			}
		}
		return false
	})
	for _, s := range stop().Stalls() {
		if s.EndTime().Before(frozen) || s.StartTime().After(thawed) {
			continue // the machine's own
		}
		t.Logf("frozen for %v, seen as %v (late %v)", thawed.Sub(frozen), s.Duration(), s.BehindFor())
		// In microseconds, as stalls are reported.
		if s.Start < lastAnswered.UnixMicro() || s.StartTime().After(lastHeld) || s.EndTime().Before(thawed.Truncate(time.Microsecond)) {
			t.Errorf("stall from %v to %v; the server froze after %v, held the last request at %v, and thawed at %v",
				s.StartTime(), s.EndTime(), lastAnswered, lastHeld, thawed)
		}
	}
}

// TestAccountIsTheSeries: what is added up on the way is what the whole series adds up to.
func TestAccountIsTheSeries(t *testing.T) {
	series := probeFake(t, Target{Name: "t", Rate: 200, Timeout: Duration(50 * time.Millisecond)}, 9*time.Second,
		func(since time.Duration) time.Duration {
			if phase := since % (3 * time.Second); phase > 1500*time.Millisecond && phase < 1800*time.Millisecond {
				return time.Hour
			}
			return time.Millisecond
		})
	var account Account
	for _, w := range series {
		if err := account.Add(w); err != nil {
			t.Fatal(err)
		}
	}
	want, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	got := account.Stats()
	if got.Percentile(99) != want.Percentile(99) || got.Sent != want.Sent || got.Failed != want.Failed ||
		got.LongestGap != want.LongestGap {
		t.Errorf("stats = %+v, want %+v", got, want)
	}
	losses, moreLosses := account.losses, account.moreLosses
	stalls, moreStalls := account.stalls, account.moreStalls
	if !reflect.DeepEqual(losses, series.Losses()) || !reflect.DeepEqual(stalls, series.Stalls()) || moreLosses+moreStalls > 0 {
		t.Errorf("losses %+v, stalls %+v; want %+v, %+v", losses, stalls, series.Losses(), series.Stalls())
	}
	if len(losses) != 3 || len(stalls) != 3 {
		t.Errorf("%d losses, %d stalls", len(losses), len(stalls))
	}
	if err := account.Add(Interval{Target: "t", Seq: 0}); err == nil {
		t.Error("a window out of turn was added")
	}
}

func TestAccountIsBounded(t *testing.T) {
	var account Account
	for i := range int64(2*keptStretches + 100) {
		w := Interval{Target: "t", Seq: uint64(i), Start: i, Failed: int(i % 2), Stalls: []Stall{{Start: i, Length: 1}}}
		if err := account.Add(w); err != nil {
			t.Fatal(err)
		}
	}
	losses, moreLosses := account.losses, account.moreLosses
	stalls, moreStalls := account.stalls, account.moreStalls
	if len(losses) != keptStretches || moreLosses != 50 || len(stalls) != keptStretches || moreStalls != keptStretches+100 {
		t.Errorf("losses %d and %d, stalls %d and %d", len(losses), moreLosses, len(stalls), moreStalls)
	}
	if data, err := json.Marshal(stalls[0]); err != nil || string(data) != `{"s":0,"l":1}` {
		t.Errorf("%s, %v", data, err)
	}
}
