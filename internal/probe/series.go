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

// ErrIncomplete says that windows are missing, so that nothing can be claimed about the time they cover.
var ErrIncomplete = errors.New("probe output is incomplete")

// Series holds the windows of one target in order, without holes.
type Series []Window

// Append adds the next window, or fails with ErrIncomplete if it is not the next one.
func (s Series) Append(w Window) (Series, error) {
	if w.Seq != uint64(len(s)) {
		return s, fmt.Errorf("%w: target %s: window %d came where %d was due", ErrIncomplete, w.Target, w.Seq, len(s))
	}
	if len(s) == 0 {
		return append(s, w), nil
	}
	last := s[len(s)-1]
	if w.Target != last.Target {
		return s, fmt.Errorf("window of target %s in the series of %s", w.Target, last.Target)
	}
	if w.Start != last.Start+1 {
		return s, fmt.Errorf("%w: target %s: window %d starts %d s after the one before",
			ErrIncomplete, w.Target, w.Seq, w.Start-last.Start)
	}
	return append(s, w), nil
}

// Between returns the windows that start at or after from and before to. Splitting a series at some instants therefore
// puts each window in exactly one part.
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

// Losses lists the stretches in which requests failed.
func (s Series) Losses() []Loss {
	var losses []Loss
	lossy := false
	for _, w := range s {
		if w.Failed == 0 {
			lossy = false
			continue
		}
		if !lossy {
			losses = append(losses, Loss{
				Target: w.Target, Start: time.UnixMicro(w.FirstFailure), Example: w.Example, Errors: map[Class]int{},
			})
		}
		lossy = true
		loss := &losses[len(losses)-1]
		loss.End = time.UnixMicro(w.LastFailure)
		loss.Failed += w.Failed
		addErrors(loss.Errors, w.Errors)
	}
	return losses
}

// Stats adds up windows of any number of targets.
type Stats struct {
	Sent, OK, Failed, Reconnects int
	Errors                       map[Class]int
	// LongestGap is the longest time any one target went without a success.
	LongestGap time.Duration

	latencies *hdr.Histogram
}

// Stats adds the series up. The time since the last success counts as a gap, so a target that stays dead shows one.
func (s Series) Stats() (Stats, error) {
	total := Stats{Errors: map[Class]int{}}
	for _, w := range s {
		total.Sent += w.Sent
		total.OK += w.OK
		total.Failed += w.Failed
		total.Reconnects += w.Reconnects
		addErrors(total.Errors, w.Errors)
		total.LongestGap = max(total.LongestGap, time.Duration(w.Gap)*time.Microsecond)
		if w.Latency == "" {
			continue
		}
		latencies, err := decodeLatency(w.Latency)
		if err != nil {
			return Stats{}, fmt.Errorf("target %s, window %d: %w", w.Target, w.Seq, err)
		}
		total.mergeLatencies(latencies)
	}
	if len(s) > 0 {
		total.LongestGap = max(total.LongestGap, s[len(s)-1].OpenGap())
	}
	return total, nil
}

// Merge adds up the stats of several targets or stretches.
func Merge(all ...Stats) Stats {
	total := Stats{Errors: map[Class]int{}}
	for _, stats := range all {
		total.Sent += stats.Sent
		total.OK += stats.OK
		total.Failed += stats.Failed
		total.Reconnects += stats.Reconnects
		addErrors(total.Errors, stats.Errors)
		total.LongestGap = max(total.LongestGap, stats.LongestGap)
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
