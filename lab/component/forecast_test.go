package component

import (
	"os"
	"testing"
	"time"
)

// TestRemaining: what is left follows from the catalogue at first, and then from how much of the processors builds had and how much longer or
// shorter they took.
func TestRemaining(t *testing.T) {
	for name, c := range map[string]struct {
		shares  []share
		elapsed time.Duration
		want    time.Duration
	}{
		"none has begun": {shares: []share{{cold: 100 * time.Second}, {cold: 20 * time.Second}}, want: time.Minute},
		"one is half done": {
			shares:  []share{{cold: 100 * time.Second, used: 50 * time.Second, pid: 1}, {cold: 20 * time.Second}},
			elapsed: 25 * time.Second, want: 35 * time.Second,
		},
		"others have the processors": {
			shares:  []share{{cold: 100 * time.Second, used: 50 * time.Second, pid: 1}, {cold: 20 * time.Second}},
			elapsed: 100 * time.Second, want: 140 * time.Second,
		},
		"processors are half as fast": {
			shares:  []share{{cold: 60 * time.Second, used: 180 * time.Second, done: true}, {cold: 100 * time.Second}},
			elapsed: 90 * time.Second, want: 100 * time.Second,
		},
		"another process built one": {shares: []share{{cold: 100 * time.Second, done: true}, {cold: 20 * time.Second}}, want: 10 * time.Second},
		"one takes longer than it should": {
			shares:  []share{{cold: 40 * time.Second, used: 80 * time.Second, pid: 1}},
			elapsed: 40 * time.Second, want: time.Second,
		},
		"all are done": {shares: []share{{cold: 40 * time.Second, used: 80 * time.Second, done: true}}, elapsed: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			if got := remaining(c.shares, c.elapsed, 2); got.Round(time.Second) != c.want {
				t.Errorf("%s are left, not %s", got, c.want)
			}
		})
	}
}

// TestProcessorTime: this process has used some, and one that there is not has used none.
func TestProcessorTime(t *testing.T) {
	for start := time.Now(); time.Since(start) < 50*time.Millisecond; {
	}
	if got := processorTime(os.Getpid()); got <= 0 || got > time.Hour {
		t.Errorf("this process has used %s", got)
	}
	if got := processorTime(-1); got != 0 {
		t.Errorf("no process has used %s", got)
	}
}
