package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/lab/lab"
)

// firstLoss finds out when the agents of a node first report that something was lost.
type firstLoss struct {
	*testing.T
	l    *lab.Lab
	node string
	// found gets it, and is closed.
	found chan lossReport
}

// lossReport is a report that something was lost.
type lossReport struct {
	probe string
	loss  v1alpha1.LossWindow
	// at is when the agent wrote it, by the clock of its node; heard, when it came here. In a lab that is one clock.
	at, heard time.Time
}

// follow looks from now on.
func (f *firstLoss) follow() {
	f.Helper()
	c, err := cluster.Connect(f.l.RESTConfig())
	must(f, err)
	all := &v1alpha1.NodeReportList{}
	must(f, c.List(f.Context(), all))
	before := map[string]int64{}
	for _, r := range all.Items {
		for _, p := range r.Status.Probes {
			before[r.Name+p.Name] = p.Failed
		}
	}
	events, err := c.Watch(f.Context(), &v1alpha1.NodeReportList{}, client.MatchingFields{"metadata.name": f.node})
	must(f, err)
	f.found = make(chan lossReport, 1)
	go func() {
		defer close(f.found)
		defer events.Stop()
		for e := range events.ResultChan() {
			r, ok := e.Object.(*v1alpha1.NodeReport)
			if !ok {
				continue
			}
			for i := range r.Status.Probes {
				p := &r.Status.Probes[i]
				if n := len(p.Losses); p.Failed > before[r.Name+p.Name] && n > 0 {
					f.found <- lossReport{probe: p.Name, loss: p.Losses[n-1], at: reportedBy(r, p.Origin), heard: time.Now()}
					return
				}
			}
		}
	}()
}

func reportedBy(r *v1alpha1.NodeReport, origin v1alpha1.ProbeOrigin) time.Time {
	for _, a := range r.Status.Agents {
		if a.Origin == origin {
			return a.ReportedAt.Time
		}
	}
	return time.Time{}
}

// reported waits for the report.
func (f *firstLoss) reported() lossReport {
	f.Helper()
	if f.found == nil {
		f.Fatal("losses have not been looked for")
	}
	select {
	case r, ok := <-f.found:
		if ok {
			return r
		}
	case <-time.After(settled):
	}
	f.Fatalf("the agents of %s have reported no loss", f.node)
	return lossReport{}
}

// requireReaction fails the test if anything but what was in hand began after a loss had been reported. How long it took is only logged:
// docs/design/measurements.md has it.
func requireReaction(t *testing.T, events []engine.Event, r lossReport) {
	t.Helper()
	if began := begunAfter(events, r.at); len(began) > 1 {
		t.Errorf("%s had reported a loss at %s, and after that began: %v", r.probe, r.at.Format(time.StampMilli), began)
	}
	i := slices.IndexFunc(events, func(e engine.Event) bool { return e.Kind == engine.RunInterrupted })
	if i < 0 {
		t.Fatal("the run was not interrupted")
	}
	t.Logf(
		"reaction: %s lost a request that was due at %s; it was reported %s later, read here %s after that, and the run had ended %s after it "+
			"was reported",
		r.probe,
		r.loss.Start.Format(time.StampMilli),
		r.at.Sub(r.loss.Start.Time).Round(time.Millisecond),
		r.heard.Sub(r.at).Round(time.Millisecond),
		events[i].Time.Sub(r.at).Round(time.Millisecond),
	)
}

// begunAfter names the groups of steps of which some began after a time: the steps of one kind, of one batch.
func begunAfter(events []engine.Event, at time.Time) []string {
	var began []string
	for _, e := range events {
		kind, _, _ := strings.Cut(e.Step, "/")
		if group := e.Group + " " + kind; e.Kind == engine.StepStarted && e.Time.After(at) && !slices.Contains(began, group) {
			began = append(began, group)
		}
	}
	return began
}

// requirePartlyIn fails the test unless some Services of the shop have moved, and some have not.
func requirePartlyIn(t *testing.T, l *lab.Lab, cidr string) {
	t.Helper()
	to := netip.MustParsePrefix(cidr)
	moved, stayed := 0, 0
	for _, s := range shopServices(t, l) {
		if s.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			continue
		}
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil && to.Contains(a) {
			moved++
		} else {
			stayed++
		}
	}
	if moved == 0 || stayed == 0 {
		t.Errorf("%d Services are in %s, and %d are not", moved, cidr, stayed)
	}
}
