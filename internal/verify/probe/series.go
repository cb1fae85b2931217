package probe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// ErrIncomplete says that windows are missing, so nothing can be claimed.
var ErrIncomplete = errors.New("probe output is incomplete")

// Series holds the windows of one target in order, without holes.
type Series []Interval

// Append adds the next window, or fails with ErrIncomplete if it is not the next one.
func (s Series) Append(w Interval) (Series, error) {
	var last Interval
	if len(s) > 0 {
		last = s[len(s)-1]
	}
	if err := follows(last, uint64(len(s)), w); err != nil {
		return s, err
	}
	return append(s, w), nil
}

func follows(last Interval, n uint64, w Interval) error {
	switch {
	case w.Seq != n:
		return fmt.Errorf("%w: target %s: window %d came where %d was due", ErrIncomplete, w.Target, w.Seq, n)
	case n > 0 && w.Target != last.Target:
		return fmt.Errorf("window of target %s in the series of %s", w.Target, last.Target)
	case n > 0 && w.Start != last.Start+1:
		return fmt.Errorf("%w: target %s: window %d starts %d s after the one before", ErrIncomplete, w.Target, w.Seq, w.Start-last.Start)
	}
	return nil
}

// Between returns the windows that start in [from, to), so that parts of a series do not overlap.
func (s Series) Between(from, to time.Time) Series {
	var part Series
	for _, w := range s {
		if start := w.StartTime(); !start.Before(from) && start.Before(to) {
			part = append(part, w)
		}
	}
	return part
}

// End is when the last window ends; zero if there is none.
func (s Series) End() time.Time {
	if len(s) == 0 {
		return time.Time{}
	}
	return s[len(s)-1].EndTime()
}

// Loss is a stretch of consecutive windows with failures.
type Loss struct {
	Target string `json:"target"`
	// Start and End are the scheduled times of the first and last failed request.
	Start   time.Time     `json:"start"`
	End     time.Time     `json:"end"`
	Failed  int           `json:"failed"`
	Errors  map[Class]int `json:"errors"`
	Example string        `json:"example"`
}

func newLoss(w Interval) Loss {
	loss := Loss{Target: w.Target, Start: time.UnixMicro(w.FirstFailure), Example: w.Example, Errors: map[Class]int{}}
	loss.add(w)
	return loss
}

func (l *Loss) add(w Interval) {
	l.End = time.UnixMicro(w.LastFailure)
	l.Failed += w.Failed
	addErrors(l.Errors, w.Errors)
}

func (s Series) Losses() []Loss {
	var losses []Loss
	lossy := false
	for _, w := range s {
		switch {
		case w.Failed > 0 && lossy:
			losses[len(losses)-1].add(w)
		case w.Failed > 0:
			losses = append(losses, newLoss(w))
		}
		lossy = w.Failed > 0
	}
	return losses
}

// Stats adds up windows of any number of targets.
type Stats struct {
	// Sent, OK, Failed, Late and NotMeasured are those of a Window.
	Sent, OK, Failed, Late, NotMeasured int

	Reconnects int
	Errors     map[Class]int
	// LongestGap is the longest time any one target went without a success.
	LongestGap time.Duration
	// LongestStall is any target's, Behind the prober's own delay.
	LongestStall, Behind time.Duration

	latencies *hdr.Histogram
}

// Stats adds up. A target that stays dead shows a gap from its last success.
func (s Series) Stats() (Stats, error) {
	total := Stats{Errors: map[Class]int{}}
	for _, w := range s {
		if err := total.add(w); err != nil {
			return Stats{}, err
		}
	}
	if len(s) > 0 {
		total.LongestGap = max(total.LongestGap, s[len(s)-1].OpenGap())
	}
	return total, nil
}

func (s *Stats) add(w Interval) error {
	if s.Errors == nil {
		s.Errors = map[Class]int{}
	}
	s.Sent += w.Sent
	s.OK += w.OK
	s.Failed += w.Failed
	s.Late += w.Late
	s.NotMeasured += w.NotMeasured
	s.Reconnects += w.Reconnects
	addErrors(s.Errors, w.Errors)
	s.LongestGap = max(s.LongestGap, time.Duration(w.Gap)*time.Microsecond)
	s.Behind = max(s.Behind, w.BehindBy())
	for _, stall := range w.Stalls {
		s.LongestStall = max(s.LongestStall, stall.Duration())
	}
	if w.Latency == "" {
		return nil
	}
	latencies, err := decodeLatency(w.Latency)
	if err != nil {
		return fmt.Errorf("target %s, window %d: %w", w.Target, w.Seq, err)
	}
	s.mergeLatencies(latencies)
	return nil
}

// Merge adds up the stats of several targets or stretches.
func Merge(all ...Stats) Stats {
	total := Stats{Errors: map[Class]int{}}
	for _, stats := range all {
		total.Sent += stats.Sent
		total.OK += stats.OK
		total.Failed += stats.Failed
		total.Late += stats.Late
		total.NotMeasured += stats.NotMeasured
		total.Reconnects += stats.Reconnects
		addErrors(total.Errors, stats.Errors)
		total.LongestGap = max(total.LongestGap, stats.LongestGap)
		total.LongestStall = max(total.LongestStall, stats.LongestStall)
		total.Behind = max(total.Behind, stats.Behind)
		if stats.latencies != nil {
			total.mergeLatencies(stats.latencies)
		}
	}
	return total
}

// Percentile is the latency that q percent of the successes did not exceed; zero without successes.
func (s Stats) Percentile(q float64) time.Duration {
	if s.latencies == nil {
		return 0
	}
	return time.Duration(s.latencies.ValueAtPercentile(q)) * time.Microsecond
}

// Latency is the latencies of all successes, encoded as in Window; empty without any.
func (s Stats) Latency() string { return encodeLatency(s.latencies) }

func (s *Stats) mergeLatencies(from *hdr.Histogram) {
	if s.latencies == nil {
		s.latencies = newHistogram()
	}
	// All histograms have the same range, so nothing can be dropped.
	s.latencies.Merge(from)
}

// FormatErrors lists classes and counts in a stable order: "connect-timeout 3, reset 1".
func FormatErrors(counts map[Class]int) string {
	parts := make([]string, 0, len(counts))
	for _, class := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", class, counts[class]))
	}
	return strings.Join(parts, ", ")
}

func addErrors(into, from map[Class]int) {
	for class, n := range from {
		into[class] += n
	}
}
