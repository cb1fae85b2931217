package lossguard

import (
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

type counterKey struct {
	speaker
	probe string
}

// counter is how far a probe was counted.
type counter struct{ sent, failed, late, notMeasured int64 }

func counterOf(p *v1alpha1.ProbeReport) counter {
	return counter{sent: p.Sent, failed: p.Failed, late: p.Late, notMeasured: p.NotMeasured}
}

func (c counter) since(was counter) counter {
	return counter{
		sent: max(0, c.sent-was.sent), failed: c.failed - was.failed, late: max(0, c.late-was.late),
		notMeasured: max(0, c.notMeasured-was.notMeasured),
	}
}

type connectKey struct{ node, service, address string }

func (t *Tally) count(node string, p *v1alpha1.ProbeReport) *v1alpha1.Loss {
	key := counterKey{speaker{Agent{node, p.Origin}, p.Instance}, p.Name}
	a := t.agents[key.speaker]
	now := counterOf(p)
	was, known := t.counters[key]
	if !known && (a == nil || a.began.Equal(a.heard)) { // it counted before we came
		was = now
	}
	t.counters[key] = now
	fresh := now.since(was)
	if a == nil {
		return nil
	}
	a.measuring.take(fresh)
	if !a.armed {
		a.failing = a.failing || known && fresh.failed > 0
		return nil
	}
	t.Sent += fresh.sent
	t.NotMeasured += fresh.notMeasured
	t.late(node, p, min(fresh.late, lateFrom(p, a.since)))
	if fresh.failed <= 0 || over(p, a.since) {
		return nil
	}
	t.Failed += fresh.failed
	loss := &v1alpha1.Loss{Node: node, Probe: p.Name, Address: p.Address}
	loss.LossWindow = v1alpha1.LossWindow{Failed: int(fresh.failed), Error: "unknown"}
	if n := len(p.Losses); n > 0 {
		loss.LossWindow = p.Losses[n-1]
	}
	return loss
}

// over reports whether the latest failed requests were all due before a time, by the node's clock.
func over(p *v1alpha1.ProbeReport, since time.Time) bool {
	n := len(p.Losses)
	return n > 0 && p.Losses[n-1].End.Time.Before(since)
}

func (t *Tally) connected(r *v1alpha1.NodeReport) []v1alpha1.Loss {
	if r.Status.Connects == nil {
		return nil
	}
	a := t.agents[speaker{Agent{r.Name, v1alpha1.FromHost}, r.Status.Connects.Instance}]
	if a == nil {
		return nil
	}
	var fresh []v1alpha1.Loss
	for i := range r.Status.Connects.Failed {
		f := &r.Status.Connects.Failed[i]
		key := connectKey{r.Name, f.Service, f.Address}
		if known, ok := t.connects[key]; ok && known.Equal(f.At.Time) {
			continue
		}
		t.connects[key] = f.At.Time
		if !a.armed {
			continue
		}
		t.Failed++
		fresh = append(fresh, v1alpha1.Loss{
			Node: r.Name, Probe: f.Service, Address: f.Address,
			LossWindow: v1alpha1.LossWindow{Start: f.At, End: f.At, Failed: 1, Error: f.Error},
		})
	}
	return fresh
}

// maxLosses is how many losses are kept (v1alpha1.ProofStatus).
const maxLosses = 32

func (t *Tally) remember(l v1alpha1.Loss) {
	same := func(o v1alpha1.Loss) bool {
		return o.Node == l.Node && o.Probe == l.Probe && o.Address == l.Address && o.Start.Equal(&l.Start)
	}
	t.Losses = append(slices.DeleteFunc(t.Losses, same), l)
	if n := len(t.Losses); n > maxLosses {
		t.Losses = t.Losses[n-maxLosses:]
	}
}
