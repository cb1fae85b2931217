package demo

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/capacity"
	"github.com/replumb/replumb/lab/traffic"
)

var update = flag.Bool("update", false, "rewrite golden files")

// good is n seconds of 10 good requests each, from second 100 on.
func good(target string, n int) probe.Series {
	var s probe.Series
	for i := range n {
		start := int64(100 + i)
		s = append(s, probe.Interval{
			Target: target, Seq: uint64(i), Start: start, Sent: 10, OK: 10, Gap: 100_000, LastOK: (start+1)*1e6 - 50_000,
		})
	}
	return s
}

// spoil makes n requests of a second fail.
func spoil(s probe.Series, second int64, n int) probe.Series {
	w := &s[second-100]
	w.OK, w.Failed = w.OK-n, n
	w.Errors = map[probe.Class]int{probe.ConnectTimeout: n}
	w.FirstFailure, w.LastFailure = second*1e6+1000, second*1e6+900_000
	return s
}

func testSource(node string, v traffic.Via) traffic.Source {
	return traffic.Source{Namespace: shopNamespace, Node: node, Service: "cart", Via: v}
}

func controlSource(v traffic.Via) traffic.Source {
	return traffic.Source{Namespace: controlNamespace, Node: "a", Service: controlService, Via: v}
}

// testTimeline: 5 s before, 10 s of move, 5 s after, then 5 s of finish. Seconds 100 and 101 are warm-up.
func testTimeline() timeline {
	t := timeline{
		load: traffic.Load{From: time.Unix(102, 0), Share: 1}, moveBegan: time.Unix(107, 0), moveEnded: time.Unix(117, 0),
		atFinish: map[traffic.Source]probe.Series{}, atEnd: map[traffic.Source]probe.Series{},
	}
	for _, node := range []string{"a", "b"} {
		for _, v := range traffic.Ways() {
			from := testSource(node, v)
			t.atFinish[from], t.atEnd[from] = good(from.Target(), 22), good(from.Target(), 27)
		}
	}
	for _, v := range []traffic.Via{traffic.ByName, traffic.ByOldAddress} {
		from := controlSource(v)
		t.atFinish[from], t.atEnd[from] = good(from.Target(), 22), spoil(good(from.Target(), 27), 112, 7)
	}
	return t
}

func TestComputeParts(t *testing.T) {
	line := testTimeline()
	// Before the baseline nothing counts; old addresses do not count once finish has begun.
	spoil(line.atEnd[testSource("a", traffic.ByName)], 101, 3)
	spoil(line.atEnd[testSource("a", traffic.ByOldAddress)], 124, 10)
	r, err := compute(line, map[string]string{"a": "iptables", "b": "nftables"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Replumb.Failed != 0 || len(r.Losses) != 0 {
		t.Errorf("replumb = %+v, losses = %+v", r.Replumb.Phase, r.Losses)
	}
	// Per node: by name and stream 25 s, by old address 20 s, of 10 requests each.
	if got, want := r.Replumb.Requests, 2*(25+25+20)*10; got != want {
		t.Errorf("requests = %d, want %d", got, want)
	}
	parts := []int{r.Replumb.Before.Requests, r.Replumb.During.Requests, r.Replumb.After.Requests}
	if sum := parts[0] + parts[1] + parts[2]; sum != r.Replumb.Requests || parts[1] != 2*3*100 {
		t.Errorf("parts = %v of %d", parts, r.Replumb.Requests)
	}
	if r.Control.Failed != 14 || r.Control.During.Failed != 14 || r.Control.Before.Failed != 0 {
		t.Errorf("control = %+v", r.Control)
	}
	if r.DNS.Requests != 2*25*10 {
		t.Errorf("dns = %+v", r.DNS.Phase)
	}
	if want := (Client{Node: "b", Proxy: "nftables", RequestsDuringMove: 300}); r.Clients[1] != want {
		t.Errorf("client = %+v, want %+v", r.Clients[1], want)
	}
	if err := r.verdict(600); err != nil {
		t.Errorf("verdict: %v", err)
	}
}

// TestSeconds: the parts by time are those of the sides, and a loss is in the second in which it was.
func TestSeconds(t *testing.T) {
	line := testTimeline()
	r, err := compute(line, map[string]string{"a": "iptables", "b": "nftables"})
	if err != nil {
		t.Fatal(err)
	}
	for name, side := range map[string]struct {
		of  Side
		all []Second
	}{replumbSide: {r.Replumb, r.Seconds.Replumb}, controlSide: {r.Control, r.Seconds.Control}} {
		sum := Second{}
		for _, s := range side.all {
			sum.Answered, sum.Lost = sum.Answered+s.Answered, sum.Lost+s.Lost
		}
		if want := (Second{Answered: side.of.Requests - side.of.Failed, Lost: side.of.Failed}); sum != want || len(side.all) != 25 {
			t.Errorf("%s: %+v in %d seconds, want %+v in 25", name, sum, len(side.all), want)
		}
	}
	if r.Seconds.Start != 102 || r.Seconds.MoveBegan != 107 || r.Seconds.MoveEnded != 117 {
		t.Errorf("%+v", r.Seconds)
	}
	if want := (Second{Answered: 6, Lost: 14}); r.Seconds.Control[112-102] != want {
		t.Errorf("the control in its second of losses: %+v, want %+v", r.Seconds.Control[10], want)
	}
	// Old addresses of the shop are counted up to finish, which is after 20 seconds.
	if before, after := r.Seconds.Replumb[19], r.Seconds.Replumb[20]; before.Answered != 60 || after.Answered != 40 {
		t.Errorf("before finish %+v, after it %+v", before, after)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "result.json", string(text)+"\n")
}

func TestVerdict(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*timeline)
		min   int
		want  string
	}{
		{
			"lost while both addresses should work",
			func(l *timeline) { spoil(l.atFinish[testSource("b", traffic.ByOldAddress)], 119, 2) },
			0,
			"replumb lost 2 of 1400 requests: connect-timeout 2",
		},
		{"lost by name during finish", func(l *timeline) { spoil(l.atEnd[testSource("b", traffic.ByName)], 124, 1) }, 0, "replumb lost 1 "},
		{"look-up failed", func(l *timeline) { spoil(l.atEnd[testSource("b", traffic.ByLookUp)], 110, 1) }, 0, "1 of 500 look-ups failed"},
		{"connection broke", func(l *timeline) { l.atEnd[testSource("b", traffic.ByStream)][8].Reconnects = 1 }, 0, "broke 1 times"},
		{"control lost nothing", func(l *timeline) {
			for _, v := range []traffic.Via{traffic.ByName, traffic.ByOldAddress} {
				l.atEnd[controlSource(v)] = good("", 27)
			}
		}, 0, "the probes prove nothing"},
		{"control lost too early", func(l *timeline) { spoil(l.atEnd[controlSource(traffic.ByName)], 104, 1) }, 0, "before anything moved"},
		{"too little traffic", func(*timeline) {}, 601, "only 600 requests"},
		{"silent client", func(l *timeline) {
			for _, v := range traffic.Ways() {
				from := testSource("b", v)
				l.atFinish[from], l.atEnd[from] = good("", 3), good("", 3)
			}
		}, 0, "node b sent nothing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			line := testTimeline()
			tt.spoil(&line)
			r, err := compute(line, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = r.verdict(tt.min)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("verdict = %v, want it to contain %q", err, tt.want)
			}
		})
	}
}

// TestSlowMachine: clients that stood still are no loss of replumb's, and what was refused meanwhile is one all the same.
func TestSlowMachine(t *testing.T) {
	byName := testSource("b", traffic.ByName)
	stopped := func(l *timeline) {
		for i := range 5 {
			w := &l.atEnd[byName][10+i]
			w.NotMeasured, w.Sent, w.OK, w.Latency = w.Sent, 0, 0, ""
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(*timeline)
		want  string
		code  int
	}{
		{"clients stood still", func(*timeline) {}, "too busy or too slow to measure losses: 50 of 1900", fault.ExitNotMeasured},
		{"and requests timed out", func(l *timeline) { spoil(l.atEnd[byName], 120, 3) }, "too busy or too slow", fault.ExitNotMeasured},
		{"and requests were refused", func(l *timeline) {
			spoil(l.atEnd[byName], 120, 3)
			l.atEnd[byName][20].Errors = map[probe.Class]int{probe.ConnectRefused: 3}
		}, "replumb lost 3 of", fault.ExitError},
	} {
		line := testTimeline()
		stopped(&line)
		tt.spoil(&line)
		r, err := compute(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = r.verdict(0)
		if code, _ := fault.ExitCode(err); err == nil || !strings.Contains(err.Error(), tt.want) || code != tt.code {
			t.Errorf("%s: %v, exit code %d", tt.name, err, code)
		}
	}
}

func TestTable(t *testing.T) {
	good := Side{
		Phase:  Phase{Requests: 44_160, LongestGapMs: 63.2},
		Before: Phase{Requests: 9_600, P50Ms: 0.91, P99Ms: 3.2}, During: Phase{Requests: 28_800, P50Ms: 1.1, P99Ms: 8.44},
		After: Phase{Requests: 5_760, P50Ms: 0.9, P99Ms: 3.1},
	}
	bad := Side{
		Phase:  Phase{Requests: 3_200, Failed: 1_501, LongestGapMs: 18_763},
		Before: Phase{Requests: 960, P50Ms: 0.9, P99Ms: 3}, During: Phase{Requests: 1_200, Failed: 700, P50Ms: 1, P99Ms: 9},
		After: Phase{Requests: 1_040, Failed: 1_040},
	}
	r := Result{
		Replumb: good, Control: bad,
		Machine: capacity.Machine{Processors: 2, Starts: 1250, Delay: 90 * time.Microsecond}, Share: 1,
		Ways:    []Way{{replumbSide, string(traffic.ByName), good}, {controlSide, string(traffic.ByOldAddress), bad}},
		Clients: []Client{{"node-1", "iptables", 14_400, 0}, {"node-2", "nftables", 14_400, 0}},
	}
	lossy := r
	at := time.Date(2026, 5, 1, 12, 30, 0, 250_000_000, time.UTC)
	for i := range maxLosses + 2 {
		lossy.Losses = append(lossy.Losses, Loss{Node: "node-2", Loss: probe.Loss{
			Target: "cart by name", Start: at, End: at.Add(time.Duration(i) * time.Second), Failed: i + 1,
			Errors: map[probe.Class]int{probe.DNSNotFound: 1, probe.ConnectRefused: i},
		}})
	}
	for name, r := range map[string]Result{"clean": r, "lossy": lossy} {
		golden(t, name+".table", r.Table())
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s\n got:\n%s\nwant:\n%s", name, got, want)
	}
}
