package agent

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

const (
	// most is how many stretches and losses a report has room for.
	most = 16
	// kept is how many seconds that have been reported can still be corrected.
	kept = 60
	// longestError is how much of an error is reported.
	longestError = 256
	// lag bounds how much later an agent may learn that an address has ended; failures within are
	// no loss.
	lag = 2 * time.Second
)

// tally counts the requests of one probe, over all targets in the course of time.
//
// A failure is reported when it is seen, and again when its window closes. The larger count of a
// second is taken, so that none is missed or counted twice.
type tally struct {
	mu     sync.Mutex
	report v1alpha1.ProbeReport
	asked  []*asking
	// seconds by their start; what is older has been added to past.
	seconds map[int64]*second
	past    sums
	// written are reported stretches up to cut; draft those up to drawn, in the next report.
	written, draft []v1alpha1.ProbeWindow
	cut, drawn     int64
	// over is up to where windows have come of targets that are no longer asked.
	over int64
	// endedAt is since when nothing is asked any more.
	endedAt time.Time
}

type second struct {
	ok, late, notMeasured int
	// seen failures were reported at once, windowed ones by a window; forgiven ones are no losses.
	seen, windowed, forgiven int
	first, last              time.Time
	example                  string
	latencies                probe.Series
}

func (s *second) failed() int { return max(s.seen, s.windowed) - s.forgiven }

type sums struct {
	sent, failed, late, notMeasured int64

	losses []v1alpha1.LossWindow
	// lossy is the latest second with a loss.
	lossy int64
}

func (s *sums) add(start int64, of *second) {
	failed := of.failed()
	s.sent += int64(of.ok + failed)
	s.failed += int64(failed)
	s.late += int64(of.late)
	s.notMeasured += int64(of.notMeasured)
	if failed <= 0 {
		return
	}
	if n := len(s.losses); n > 0 && start-s.lossy <= 1 {
		s.losses[n-1].End = metav1.NewMicroTime(of.last)
		s.losses[n-1].Failed += failed
	} else {
		s.losses = append(s.losses, v1alpha1.LossWindow{
			Start: metav1.NewMicroTime(of.first), End: metav1.NewMicroTime(of.last), Failed: failed, Error: of.example,
		})
	}
	s.losses = s.losses[max(0, len(s.losses)-most):]
	s.lossy = start
}

type asking struct {
	tally  *tally
	target target
	// closed is up to where windows have come.
	closed int64
	// takenAt is the end; with forgive, nothing must answer at the target since.
	takenAt time.Time
	forgive bool
}

func newTally(t target, origin v1alpha1.ProbeOrigin, instance string, now time.Time) *tally {
	return &tally{
		report: v1alpha1.ProbeReport{
			Name: t.Name, Origin: origin, Kind: t.kind, Address: t.shown, Instance: instance, Since: metav1.NewMicroTime(now),
		},
		seconds: map[int64]*second{},
	}
}

func (t *tally) ask(to target, now time.Time) *asking {
	t.mu.Lock()
	defer t.mu.Unlock()
	start := now.Unix()
	if t.cut == 0 || (len(t.asked) == 0 && start > t.horizon()) { // stretches are reported without holes
		t.written, t.cut = nil, start
	}
	t.report.Kind, t.report.Address, t.endedAt = to.kind, to.shown, time.Time{}
	a := &asking{tally: t, target: to, closed: start}
	t.asked = append(t.asked, a)
	return a
}

// takeAway ends a target; with forgive, nothing must answer there either.
func (a *asking) takeAway(now time.Time, forgive bool) {
	a.tally.mu.Lock()
	defer a.tally.mu.Unlock()
	a.takenAt, a.forgive = now, forgive
	if !slices.ContainsFunc(a.tally.asked, func(a *asking) bool { return a.takenAt.IsZero() }) {
		a.tally.endedAt = now
	}
}

func (a *asking) done() {
	t := a.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = slices.DeleteFunc(t.asked, func(o *asking) bool { return o == a })
	t.over = max(t.over, a.closed)
}

func (a *asking) failed(scheduled time.Time, failure *probe.Failure, now time.Time) {
	a.tally.mu.Lock()
	defer a.tally.mu.Unlock()
	s := a.tally.at(scheduled.Unix())
	s.seen++
	if !now.Before(a.takenAt) && a.forgives(scheduled) {
		s.forgiven++
		return
	}
	s.blame(scheduled, scheduled, failure.Error())
}

// forgives reports whether nothing had to answer a request when it was due.
func (a *asking) forgives(scheduled time.Time) bool {
	return a.forgive && scheduled.After(a.takenAt.Add(-lag))
}

func (s *second) blame(first, last time.Time, example string) {
	if s.first.IsZero() || first.Before(s.first) {
		s.first, s.example = first, example[:min(len(example), longestError)]
	}
	if last.After(s.last) {
		s.last = last
	}
}

func (a *asking) window(w probe.Interval) {
	a.tally.mu.Lock()
	defer a.tally.mu.Unlock()
	s := a.tally.at(w.Start)
	s.ok += w.OK
	s.windowed += w.Failed
	s.notMeasured += w.NotMeasured
	if !a.forgives(w.EndTime()) {
		s.late += w.Late
	}
	if s.windowed > s.seen {
		s.blame(time.UnixMicro(w.FirstFailure), time.UnixMicro(w.LastFailure), w.Example)
	}
	if w.Latency != "" {
		s.latencies = append(s.latencies, w)
	}
	a.closed = w.Start + 1
}

func (t *tally) at(start int64) *second {
	s := t.seconds[start]
	if s == nil {
		s = &second{}
		t.seconds[start] = s
	}
	return s
}

func (t *tally) horizon() int64 {
	if len(t.asked) == 0 {
		return max(t.cut, t.over)
	}
	first := slices.MinFunc(t.asked, func(a, b *asking) int { return cmp.Compare(a.closed, b.closed) })
	return max(t.cut, first.closed)
}

// draw makes the report; what is new in it counts as reported once it is retained.
func (t *tally) draw() (v1alpha1.ProbeReport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	total := t.past
	total.losses = slices.Clone(t.past.losses)
	t.drawn = t.horizon()
	stretch := v1alpha1.ProbeWindow{Start: t.cut, End: t.drawn}
	var latencies probe.Series
	for _, start := range slices.Sorted(maps.Keys(t.seconds)) {
		s := t.seconds[start]
		total.add(start, s)
		if start >= stretch.Start && start < stretch.End {
			stretch.Sent += s.ok + s.failed()
			stretch.Failed += s.failed()
			stretch.Late += s.late
			stretch.NotMeasured += s.notMeasured
			latencies = append(latencies, s.latencies...)
		}
	}
	stats, err := latencies.Stats()
	if err != nil {
		return v1alpha1.ProbeReport{}, err
	}
	stretch.Latency = stats.Latency()
	t.draft = slices.Clone(t.written)
	if stretch.End > stretch.Start {
		t.draft = append(t.draft, stretch)
	}
	t.draft = t.draft[max(0, len(t.draft)-most):]
	report := t.report
	report.Sent, report.Failed, report.Late, report.NotMeasured = total.sent, total.failed, total.late, total.notMeasured
	report.Losses, report.Recent = total.losses, slices.Clone(t.draft)
	return report, nil
}

func (t *tally) retain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written, t.cut = t.draft, max(t.cut, t.drawn)
	for _, start := range slices.Sorted(maps.Keys(t.seconds)) {
		if start < t.cut-kept {
			t.past.add(start, t.seconds[start])
			delete(t.seconds, start)
		}
	}
}

func (t *tally) gone(since time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.asked) == 0 && !t.endedAt.IsZero() && t.endedAt.Before(since)
}
