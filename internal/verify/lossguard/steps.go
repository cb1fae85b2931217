package lossguard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// moment is how long one look waits for news.
const moment = 2 * time.Second

// Steady is the step after which losses count: all probes of ready nodes are answered for a while.
type Steady struct {
	Watch *Watch
	// Name of what it comes after, where there is more than one.
	Name  string
	Limit time.Duration
}

var _ engine.Waiter = (*Steady)(nil)

func (s *Steady) ID() string {
	if s.Name != "" {
		return "agents/steady/" + s.Name
	}
	return "agents/steady"
}

func (s *Steady) Title() string {
	if s.Name != "" {
		return "Verify that every probe is answered on every node after " + s.Name
	}
	return "Verify that every probe is answered on every node"
}

func (*Steady) Waits() {}

func (s *Steady) Deadline() time.Duration { return s.Limit + lately }

func (s *Steady) State(ctx context.Context) (engine.State, error) {
	missing, err := s.missing(ctx, 0)
	switch {
	case err != nil:
		return engine.Unknown, err
	case len(missing) == 0:
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (*Steady) Do(context.Context) error { return nil }

func (s *Steady) Verify(ctx context.Context) error {
	missing, err := s.missing(ctx, moment)
	if err != nil || len(missing) == 0 {
		return err
	}
	var unmeasuring []string
	s.Watch.seen().read(func(t *Tally) { unmeasuring = t.Unmeasuring(s.Watch.nodes.due()) })
	if len(unmeasuring) == len(missing) { // nothing else is amiss
		return engine.NotYet("%w", &NotMeasuredError{Agents: unmeasuring})
	}
	return engine.NotYet("%s", strings.Join(missing[:min(len(missing), namedLosses)], "; "))
}

// missing names what is not settled, by the nodes there are now.
func (s *Steady) missing(ctx context.Context, moment time.Duration) ([]string, error) {
	s.Watch.Expect()
	if err := s.Watch.list(ctx); err != nil {
		return nil, err
	}
	return s.Watch.until(ctx, moment, func(t *Tally) []string { return t.Unarmed(s.Watch.nodes.due()) }), nil
}

// Vacated waits until agents have left a node whose address is about to go.
func (p *Agents) Vacated(node string) engine.Step {
	return &engine.Wait{
		Name: "agents/vacate/" + node, About: "Verify that agents leave node " + node,
		Limit: p.Wait, Again: true,
		For: func(ctx context.Context) error { return p.Watch.vacated(ctx, node) },
	}
}

func (w *Watch) vacated(ctx context.Context, node string) error {
	if err := w.list(ctx); err != nil {
		return err
	}
	stay, there := w.nodes.staying(node)
	if !there {
		return nil
	}
	pods := &corev1.PodList{}
	err := w.Client.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingFields{"spec.nodeName": node},
		client.MatchingLabels{v1alpha1.LabelMigration: w.Migration})
	if err != nil {
		return fmt.Errorf("pods of agents on node %s: %w", node, err)
	}
	for i := range pods.Items {
		if o := agentset.OriginOf(&pods.Items[i]); o != "" && !slices.Contains(stay, o) {
			return engine.NotYet("pod %s is still on node %s", pods.Items[i].Name, node)
		}
	}
	return nil
}

// Connected connects to moved Services from every node, at both addresses. Failures are losses.
func (p *Agents) Connected(moved string, limit time.Duration) engine.Step {
	return &engine.Wait{
		Name: "connect/" + moved, About: "Connect to the Services of " + moved + " from every node",
		Limit: limit, Again: true,
		For: func(ctx context.Context) error { return p.Watch.connected(ctx, p.Ranges) },
	}
}

// connected counts the Services at every look, since some may be deleted meanwhile.
func (w *Watch) connected(ctx context.Context, ranges []netip.Prefix) error {
	all := &corev1.ServiceList{}
	if err := w.Client.List(ctx, all); err != nil {
		return err
	}
	want := 0
	for i := range all.Items {
		if moved(&all.Items[i], w.Migration, ranges) {
			want++
		}
	}
	missing := w.until(ctx, moment, func(t *Tally) []string { return t.Unconnected(want, w.nodes.ready()) })
	if len(missing) > 0 {
		return engine.NotYet("%s has not connected to all of them", nodes(missing))
	}
	return nil
}

// moved reports whether agents count a Service as moved: anyone may write its annotations.
func moved(svc *corev1.Service, migration string, ranges []netip.Prefix) bool {
	notes := svc.Annotations
	at, err := netip.ParseAddr(notes[v1alpha1.AnnotationTargetIP])
	inside := func(r netip.Prefix) bool { return r.Contains(at) }
	return err == nil && svc.DeletionTimestamp.IsZero() && slices.ContainsFunc(ranges, inside) &&
		svc.Spec.Type != corev1.ServiceTypeExternalName &&
		(svc.Spec.ClusterIP == at.String() || slices.Contains(svc.Spec.ClusterIPs, at.String())) &&
		notes[v1alpha1.LabelMigration] == migration &&
		notes[v1alpha1.AnnotationMovedAt] != ""
}

func nodes(names []string) string {
	text := "node " + strings.Join(names[:min(len(names), 8)], ", ")
	if len(names) > 8 {
		text += " and others"
	}
	return text
}

// Quiet waits until no agent calls addresses that are about to go.
func (p *Agents) Quiet(addresses map[string]bool) engine.Step {
	return &engine.Wait{
		Name: "agents/leave", About: "Stop agents from calling the addresses that go",
		Limit: p.Wait, Again: true,
		For: func(ctx context.Context) error {
			w := p.Watch
			missing := w.until(ctx, moment, func(t *Tally) []string { return t.Calling(addresses, w.nodes.ready()) })
			if len(missing) > 0 {
				return engine.NotYet("%s still calls them", nodes(missing))
			}
			return nil
		},
	}
}

// Heard waits for another report of every agent: a loss is not known between reports.
func (p *Agents) Heard(before string) []engine.Group {
	if p == nil {
		return nil
	}
	var since time.Time
	w := p.Watch
	// A report wakes waiters as it is counted, maybe before the run is stopped for it.
	missing := func(t *Tally) []string {
		if w.spent(t.Failed, t.Late) {
			return []string{"more was lost, or late, than may be"}
		}
		return t.Unheard(since, w.nodes.due())
	}
	return engine.InOrder(&engine.Wait{
		Name: "agents/heard", About: "Hear from every node before " + before, Limit: p.Wait, Again: true,
		For: func(ctx context.Context) error {
			if since.IsZero() {
				since = w.now()
			}
			if err := w.list(ctx); err != nil {
				return err
			}
			if all := w.until(ctx, moment, missing); len(all) > 0 {
				return engine.NotYet("%s", strings.Join(all[:min(len(all), namedLosses)], "; "))
			}
			return nil
		},
	})
}

// Dismiss is the step from which agents may go.
type Dismiss struct{ Watch *Watch }

func (*Dismiss) ID() string { return "agents/dismiss" }

func (*Dismiss) Title() string { return "Let agents go" }

// Waits implements engine.Waiter: nothing in the cluster is written.
func (*Dismiss) Waits() {}

func (s *Dismiss) State(context.Context) (engine.State, error) {
	if s.Watch.nodes.expected() {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *Dismiss) Do(context.Context) error {
	s.Watch.Release()
	return nil
}

func (*Dismiss) Verify(context.Context) error { return nil }
