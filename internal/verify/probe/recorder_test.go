package probe

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// at is an instant ms milliseconds into the second in which the tests begin.
func at(ms int) time.Time { return time.UnixMilli(1_000_000_000 + int64(ms)) }

func TestRecorderWritesWindowOnlyWhenItCannotChange(t *testing.T) {
	r := newRecorder(Target{Name: "t", Rate: 10}, at(0))
	r.begin(at(900), at(900))
	r.advance(at(1900))
	if got := r.closed(at(1500)); len(got) != 0 {
		t.Fatalf("window written while a request was under way: %+v", got)
	}
	r.succeed(at(900), at(1700), false)
	got := r.closed(at(1700))
	if len(got) != 1 || got[0].Sent != 1 || got[0].OK != 1 || got[0].Gap != 0 {
		t.Fatalf("first window = %+v", got)
	}
	if got := r.closed(at(2500)); len(got) != 0 {
		t.Fatalf("window written although a request at 1.9 s may still come: %+v", got)
	}
	r.advance(at(2900))
	got = r.closed(at(2500))
	if len(got) != 1 || got[0].Gap != 1_700_000 || got[0].Seq != 1 {
		t.Fatalf("the gap belongs to the second in which it ended: %+v", got)
	}
}

func TestRecorderWindows(t *testing.T) {
	boom := &Failure{Class: Reset, Err: errors.New("boom")}
	tests := []struct {
		name string
		do   func(*recorder)
		want []Interval
	}{{
		name: "idle target still writes windows",
		do:   func(*recorder) {},
		want: []Interval{
			{Target: "t", Seq: 0, Start: 1_000_000, LastOK: 1_000_000_000_000},
			{Target: "t", Seq: 1, Start: 1_000_001, LastOK: 1_000_000_000_000},
			{Target: "t", Seq: 2, Start: 1_000_002, LastOK: 1_000_000_000_000, Until: 1_000_002_500_000},
		},
	}, {
		name: "failures are counted by class and bounded in time",
		do: func(r *recorder) {
			for _, ms := range []int{100, 200, 300} {
				r.begin(at(ms), at(ms))
			}
			r.succeed(at(100), at(150), false)
			r.fail(at(300), boom)
			r.fail(at(200), boom)
		},
		want: []Interval{
			{
				Target: "t", Start: 1_000_000, Sent: 3, OK: 1, Failed: 2, Errors: map[Class]int{Reset: 2}, Example: "boom",
				FirstFailure: 1_000_000_200_000, LastFailure: 1_000_000_300_000, Gap: 150_000, LastOK: 1_000_000_150_000,
			},
			{Target: "t", Seq: 1, Start: 1_000_001, LastOK: 1_000_000_150_000},
			{
				Target: "t", Seq: 2, Start: 1_000_002, LastOK: 1_000_000_150_000, Until: 1_000_002_500_000,
				Stalls: []Stall{{Start: 1_000_000_300_000, Length: 2_200_000}},
			},
		},
	}, {
		name: "gap across windows, reconnect",
		do: func(r *recorder) {
			r.begin(at(100), at(100))
			r.succeed(at(100), at(100), false)
			r.reconnected(at(1500))
			r.begin(at(2100), at(2100))
			r.succeed(at(2100), at(2100), false)
		},
		want: []Interval{
			{Target: "t", Start: 1_000_000, Sent: 1, OK: 1, Gap: 100_000, LastOK: 1_000_000_100_000},
			{Target: "t", Seq: 1, Start: 1_000_001, Reconnects: 1, LastOK: 1_000_000_100_000},
			{
				Target: "t", Seq: 2, Start: 1_000_002, Sent: 1, OK: 1, Gap: 2_000_000, LastOK: 1_000_002_100_000,
				Until: 1_000_002_500_000,
			},
		},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRecorder(Target{Name: "t", Rate: 10}, at(0))
			tt.do(r)
			r.advance(at(2500))
			got := r.final(at(2500))
			for i := range got {
				got[i].Latency = ""
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("windows\n got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
