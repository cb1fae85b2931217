package probe

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestAppendDetectsMissingWindows(t *testing.T) {
	tests := []struct {
		name    string
		windows []Interval
		want    error
	}{
		{"whole", []Interval{{Seq: 0, Start: 5}, {Seq: 1, Start: 6}}, nil},
		{"first missing", []Interval{{Seq: 1, Start: 5}}, ErrIncomplete},
		{"hole", []Interval{{Seq: 0, Start: 5}, {Seq: 2, Start: 7}}, ErrIncomplete},
		{"twice", []Interval{{Seq: 0, Start: 5}, {Seq: 0, Start: 5}}, ErrIncomplete},
		{"time jumps", []Interval{{Seq: 0, Start: 5}, {Seq: 1, Start: 7}}, ErrIncomplete},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var series Series
			var err error
			for _, w := range tt.windows {
				if series, err = series.Append(w); err != nil {
					break
				}
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("error = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestBetweenPutsEachWindowInOnePart(t *testing.T) {
	series := Series{{Start: 10}, {Start: 11}, {Start: 12}, {Start: 13}}
	first, second := time.Unix(11, 0), time.Unix(12, 500_000_000)
	parts := []Series{
		series.Between(time.Time{}, first), series.Between(first, second), series.Between(second, time.Unix(99, 0)),
	}
	want := []Series{{{Start: 10}}, {{Start: 11}, {Start: 12}}, {{Start: 13}}}
	if !reflect.DeepEqual(parts, want) {
		t.Errorf("parts = %v, want %v", parts, want)
	}
}

func TestLosses(t *testing.T) {
	lossy := func(start int64, failed int, class Class) Interval {
		return Interval{
			Target: "t", Start: start, Failed: failed, Errors: map[Class]int{class: failed}, Example: string(class),
			FirstFailure: start*1e6 + 100, LastFailure: start*1e6 + 200,
		}
	}
	series := Series{{Start: 1}, lossy(2, 1, Reset), lossy(3, 2, ConnectRefused), {Start: 4}, lossy(5, 4, Timeout)}
	got := series.Losses()
	want := []Loss{
		{
			Target: "t", Start: time.UnixMicro(2_000_100), End: time.UnixMicro(3_000_200), Failed: 3, Example: "reset",
			Errors: map[Class]int{Reset: 1, ConnectRefused: 2},
		},
		{
			Target: "t", Start: time.UnixMicro(5_000_100), End: time.UnixMicro(5_000_200), Failed: 4, Example: "timeout",
			Errors: map[Class]int{Timeout: 4},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("losses\n got %+v\nwant %+v", got, want)
	}
	if got := FormatErrors(got[0].Errors); got != "connect-refused 2, reset 1" {
		t.Errorf("errors = %q", got)
	}
}

func TestStatsCountsOpenGap(t *testing.T) {
	series := Series{
		{Start: 10, Sent: 5, OK: 5, Gap: 30_000, LastOK: 10_990_000},
		{Start: 11, Sent: 5, Failed: 5, Errors: map[Class]int{Timeout: 5}, LastOK: 10_990_000},
	}
	got, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if got.Sent != 10 || got.OK != 5 || got.Failed != 5 || got.LongestGap != 1010*time.Millisecond {
		t.Errorf("stats = %+v", got)
	}
}

func TestMergePercentiles(t *testing.T) {
	var all []Stats
	for _, latency := range []time.Duration{time.Millisecond, 100 * time.Millisecond} {
		r := newRecorder(Target{Name: "t", Rate: 10}, at(0))
		for range 50 {
			r.begin(at(10), at(10))
			r.succeed(at(10), at(10).Add(latency), false)
		}
		r.advance(at(1000))
		// Through JSON, as between a client and its reader.
		data, err := json.Marshal(r.closed(at(1000)))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 300 {
			t.Errorf("window takes %d bytes: %s", len(data), data)
		}
		var series Series
		if err := json.Unmarshal(data, &series); err != nil {
			t.Fatal(err)
		}
		stats, err := series.Stats()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, stats)
	}
	total := Merge(all...)
	near(t, "p50", total.Percentile(50), time.Millisecond)
	near(t, "p99", total.Percentile(99), 100*time.Millisecond)
	if total.Sent != 100 {
		t.Errorf("sent = %d", total.Sent)
	}
	if got := (Stats{}).Percentile(99); got != 0 {
		t.Errorf("p99 of nothing = %v", got)
	}
}

func near(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if got < want*98/100 || got > want*102/100 {
		t.Errorf("%s = %v, want about %v", what, got, want)
	}
}
