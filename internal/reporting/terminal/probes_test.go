package terminal

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

func TestProbesTellsWhereLossesBeginAndEnd(t *testing.T) {
	var out strings.Builder
	p := NewProbes(&out, nil)
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000_000 + int64(ms)) }
	refused := &probe.Failure{Class: probe.ConnectRefused, Err: errors.New("dial: no")}
	window := func(n int64, ok, failed int) probe.Interval {
		return probe.Interval{Target: "tcp://a:1", Start: 1_000_000 + n, Sent: ok + failed, OK: ok, Failed: failed}
	}
	p.Window(window(0, 5, 0))
	p.Failure("tcp://a:1", at(1800), refused)
	p.Failure("tcp://a:1", at(2100), refused)
	p.Window(window(1, 4, 1))
	p.Failure("tcp://a:1", at(1900), refused) // out of turn
	p.Window(window(2, 4, 2))
	p.Window(window(3, 0, 0)) // silence is no answer
	p.Window(window(4, 5, 0))
	p.Failure("tcp://a:1", at(6100), refused)
	p.Window(window(5, 5, 0)) // the second before that of the failure
	stalled := window(6, 4, 1)
	stalled.Stalls = []probe.Stall{{Start: at(6100).UnixMicro(), Length: 120_000, Behind: 90_000}}
	p.Window(stalled)
	p.Close()
	clock := func(ms int) string { return at(ms).Format("15:04:05.000") }
	want := clock(1800) + " tcp://a:1: lost: connect-refused: dial: no\n" +
		clock(4000) + " tcp://a:1: answers again; 3 failed within 300ms\n" +
		clock(6100) + " tcp://a:1: lost: connect-refused: dial: no\n" +
		clock(6100) + " tcp://a:1: nothing answered for 120ms, while this machine itself was behind for 90ms\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestProbesDrawsOnATerminal(t *testing.T) {
	var out strings.Builder
	p := NewProbes(&out, &ProgressLine{w: &out, width: func() int { return 80 }})
	p.Window(probe.Interval{Target: "a", Start: 1, Sent: 10, OK: 10})
	p.Window(probe.Interval{Target: "a", Start: 2, Sent: 10, OK: 10})
	if _, line := screen(out.String()); line != "0s: 20 sent, 0 failed; Ctrl-C ends it" {
		t.Errorf("line = %q", line)
	}
	p.Window(probe.Interval{Target: "a", Start: 3, Sent: 8, OK: 8, Late: 3, NotMeasured: 2})
	if _, line := screen(out.String()); line != "0s: 28 sent, 0 failed, 3 late, 2 not measured; Ctrl-C ends it" {
		t.Errorf("line = %q", line)
	}
	p.Failure("a", time.Now(), &probe.Failure{Class: probe.Timeout, Err: errors.New("no")})
	above, line := screen(out.String())
	if len(above) != 1 || !strings.HasSuffix(above[0], "a: lost: timeout: no") || line != "" {
		t.Errorf("above = %q, line = %q", above, line)
	}
	p.Close()
}

func TestProbeSummary(t *testing.T) {
	start := time.UnixMilli(1_000_000_000)
	lost := probe.LossSummary{
		Start: start, End: start.Add(time.Second), Failed: 2, Error: "dial: no", Errors: map[probe.Class]int{probe.Reset: 2},
	}
	summary := probe.Summary{Targets: []probe.TargetSummary{
		{Target: "http://a/", Sent: 9, OK: 9, Late: 1, NotMeasured: 2, P50: 1.26, P90: 2, P99: 3, Max: 4, LongestGap: 100.4},
		{
			Target: "tcp://b:1", Sent: 50, Failed: 50, LongestGap: 12_345, LongestStall: 60,
			Losses: make([]probe.LossSummary, shownStretches+1), MoreLosses: 3,
			Stalls: []probe.StallSummary{{Start: start, End: start.Add(60 * time.Millisecond), Length: 60}},
		},
	}}
	for i := range summary.Targets[1].Losses {
		summary.Targets[1].Losses[i] = lost
	}
	var out strings.Builder
	if err := ProbeSummary(&out, summary); err != nil {
		t.Fatal(err)
	}
	from := start.Format("15:04:05.000")
	one := "\nlost: tcp://b:1\n  from " + from + " to " + start.Add(time.Second).
		Format("15:04:05.000") +
		", 2 requests: reset 2\n  dial: no\n"
	want := "TARGET     SENT  FAILED  LATE  NOT MEASURED  P50    P90    P99    MAX    LONGEST GAP  LONGEST STALL\n" +
		"http://a/  9     0       1     2             1.3ms  2.0ms  3.0ms  4.0ms  100ms        -\n" +
		"tcp://b:1  50    50      0     0             -      -      -      -      12.3s        60ms\n" +
		strings.Repeat(one, shownStretches) + "\nlost: tcp://b:1\n  4 more times\n" +
		"\nstalled: tcp://b:1\n  from " + from + " for 60ms\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}
