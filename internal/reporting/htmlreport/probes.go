package htmlreport

import (
	"maps"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/reporting/journal"
)

func probes(samples []journal.Sample, losses []Loss) []Probe {
	lost := map[string]int64{}
	for _, l := range losses {
		lost[l.Probe] += int64(l.Failed)
	}
	sums := map[string]journal.Sample{}
	points := map[string][]Point{}
	for _, s := range samples {
		sums[s.Probe] = journal.Merge(sums[s.Probe], s)
		points[s.Probe] = append(points[s.Probe], point(s))
	}
	var out []Probe
	for _, name := range slices.SortedFunc(maps.Keys(sums), strings.Compare) {
		s := sums[name]
		failed := max(s.Failed, lost[name])
		out = append(out, Probe{
			Name: name, Sent: max(s.Sent, failed), Failed: failed, Late: s.Late, NotMeasured: s.NotMeasured,
			P50: s.P50, P99: s.P99, Max: s.Max, Samples: points[name],
		})
	}
	return out
}

func point(s journal.Sample) Point {
	return Point{
		Start: s.Start, End: s.End, Sent: s.Sent, Failed: s.Failed, Late: s.Late, NotMeasured: s.NotMeasured, P50: s.P50, P99: s.P99,
	}
}

func sample(p Point) journal.Sample {
	return journal.Sample{
		Start: p.Start, End: p.End, Sent: p.Sent, Failed: p.Failed, Late: p.Late, NotMeasured: p.NotMeasured, P50: p.P50, P99: p.P99,
	}
}

func coarse(points []Point, seconds int64) []Point {
	sums := map[int64]journal.Sample{}
	for _, p := range points {
		sums[p.Start/seconds] = journal.Merge(sums[p.Start/seconds], sample(p))
	}
	out := make([]Point, 0, len(sums))
	for _, slot := range slices.Sorted(maps.Keys(sums)) {
		out = append(out, point(sums[slot]))
	}
	return out
}

func percent(sent, failed int64) float64 {
	if sent == 0 {
		return 100
	}
	return 100 * float64(sent-failed) / float64(sent)
}
