package lossguard

import (
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// overlap is how far apart losses may be that count as those of one moment: nodes have clocks of
// their own.
const overlap = 2 * time.Second

// remembered is for how long after a roll a loss may come from it: a node may learn much later.
const remembered = 5 * time.Minute

// Rolled notes that the one pod behind agentset.Single was replaced, at a time of our clock.
func (t *Tally) Rolled(at time.Time) { t.rolled = at }

// learnsLate reports whether a node still leads to a pod that has ended. Its probes of the Service
// with one endpoint fail after that has rolled, and neither its others nor those of other nodes do.
func (t *Tally) learnsLate(r *v1alpha1.NodeReport, l *v1alpha1.Loss, at time.Time) bool {
	i := slices.IndexFunc(r.Status.Probes, func(p v1alpha1.ProbeReport) bool { return p.Name == l.Probe })
	if i < 0 || !ofSingle(l.Probe) || t.rolled.IsZero() || at.Sub(t.rolled) > remembered {
		return false
	}
	elsewhere := false
	for node, other := range t.reports {
		for j := range other.Status.Probes {
			p := &other.Status.Probes[j]
			switch {
			case node == r.Name && p.Instance == r.Status.Probes[i].Instance && !ofSingle(p.Name) && failedBeside(p, l):
				return false
			case node != r.Name && p.Name == l.Probe && !failedBeside(p, l):
				elsewhere = true
			}
		}
	}
	return elsewhere
}

// ofSingle reports whether a probe, as origin/name, asks the Service with one endpoint.
func ofSingle(probe string) bool {
	_, name, _ := strings.Cut(probe, "/")
	return slices.Contains([]string{v1alpha1.ProbeSingleOld, v1alpha1.ProbeSingleNew, v1alpha1.ProbeSingleName}, name)
}

func failedBeside(p *v1alpha1.ProbeReport, l *v1alpha1.Loss) bool {
	return slices.ContainsFunc(p.Losses, func(w v1alpha1.LossWindow) bool {
		return !w.End.Add(overlap).Before(l.Start.Time) && !l.End.Add(overlap).Before(w.Start.Time)
	})
}
