package lossguard

import (
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

// Sample is what the requests of one probe met with in a stretch of time, over all nodes.
type Sample struct {
	// Probe is its name with its origin, as in a NodeReport.
	Probe      string
	Start, End int64

	Sent, Failed, Late, NotMeasured int
	// P50, P99 and Max are latencies of the successes, from the scheduled time.
	P50, P99, Max time.Duration
}

const (
	// stretch is how many seconds a sample covers.
	stretch = 10
	// late is how long after its end reports may still add to a sample, in seconds.
	late = 20
)

// samples gather windows of many nodes.
type samples struct {
	open    map[sampleKey]*gathering
	counted map[countedKey]int64
	// newest is the latest end of a window.
	newest int64
}

type sampleKey struct {
	start int64
	probe string
}

type countedKey struct{ node, probe string }

type gathering struct {
	sent, failed, late, notMeasured int

	stats []probe.Stats
}

func (s *samples) take(r *v1alpha1.NodeReport) []Sample {
	if s.open == nil {
		s.open, s.counted = map[sampleKey]*gathering{}, map[countedKey]int64{}
	}
	for i := range r.Status.Probes {
		p := &r.Status.Probes[i]
		key := countedKey{r.Name, p.Name}
		for _, w := range p.Recent {
			if w.End <= s.counted[key] {
				continue
			}
			s.counted[key] = w.End
			s.newest = max(s.newest, w.End)
			s.add(p.Name, w)
		}
	}
	return s.complete(s.newest - late)
}

func (s *samples) add(name string, w v1alpha1.ProbeWindow) {
	key := sampleKey{w.Start - w.Start%stretch, name}
	g := s.open[key]
	if g == nil {
		g = &gathering{}
		s.open[key] = g
	}
	g.sent += w.Sent
	g.failed += w.Failed
	g.late += w.Late
	g.notMeasured += w.NotMeasured
	// A histogram that cannot be read leaves the counts, which are what matters.
	if stats, err := (probe.Series{{Latency: w.Latency}}).Stats(); err == nil {
		g.stats = append(g.stats, stats)
	}
}

// complete returns, in order and once, the samples that end at a time or before.
func (s *samples) complete(until int64) []Sample {
	var done []Sample
	for key, g := range s.open {
		if key.start+stretch > until {
			continue
		}
		delete(s.open, key)
		all := probe.Merge(g.stats...)
		done = append(done, Sample{
			Probe: key.probe, Start: key.start, End: key.start + stretch, Sent: g.sent, Failed: g.failed,
			Late: g.late, NotMeasured: g.notMeasured, P50: all.Percentile(50), P99: all.Percentile(99), Max: all.Percentile(100),
		})
	}
	slices.SortFunc(done, func(a, b Sample) int {
		if a.Start != b.Start {
			return int(a.Start - b.Start)
		}
		return strings.Compare(a.Probe, b.Probe)
	})
	return done
}

func (s *samples) rest() []Sample { return s.complete(s.newest + stretch) }
