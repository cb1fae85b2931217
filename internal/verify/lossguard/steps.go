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

// Steady is the step after which losses count: every agent on a ready node has had all its probes answered for a while.
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

// State implements engine.Step: what an earlier run saw says nothing of now.
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
	return s.Watch.until(ctx, moment, func(t *Tally) []string { return t.Unsettled(s.Watch.nodes.due()) }), nil
}

// Vacated is the step that waits until no agent is on a node any more that must not be: until then others may call what is about to have
// no address there.
type Vacated struct {
	Watch *Watch
	Node  string
	Limit time.Duration
}

var _ engine.Waiter = (*Vacated)(nil)

func (s *Vacated) ID() string { return "agents/vacate/" + s.Node }

func (s *Vacated) Title() string { return "Verify that agents leave node " + s.Node }

func (*Vacated) Waits() {}

func (s *Vacated) Deadline() time.Duration { return s.Limit }

func (*Vacated) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (*Vacated) Do(context.Context) error { return nil }

func (s *Vacated) Verify(ctx context.Context) error {
	if err := s.Watch.list(ctx); err != nil {
		return err
	}
	stay, there := s.Watch.nodes.staying(s.Node)
	if !there {
		return nil
	}
	pods := &corev1.PodList{}
	ours := []client.ListOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingFields{"spec.nodeName": s.Node},
		client.MatchingLabels{v1alpha1.LabelMigration: s.Watch.Migration},
	}
	if err := s.Watch.Client.List(ctx, pods, ours...); err != nil {
		return fmt.Errorf("pods of agents on node %s: %w", s.Node, err)
	}
	for i := range pods.Items {
		if o := agentset.OriginOf(&pods.Items[i]); o != "" && !slices.Contains(stay, o) {
			return engine.NotYet("pod %s is still on node %s", pods.Items[i].Name, s.Node)
		}
	}
	return nil
}

// Connected is the step that has every ready node connect to the Services that have moved, at both addresses. What fails counts as lost.
type Connected struct {
	Watch *Watch
	// Name of what has moved.
	Name string
	// Ranges are those that Services move between, as agents are given them.
	Ranges []netip.Prefix
	Limit  time.Duration

	want int
}

var _ engine.Waiter = (*Connected)(nil)

func (s *Connected) ID() string { return "connect/" + s.Name }

func (s *Connected) Title() string {
	return "Connect to the Services of " + s.Name + " from every node"
}

func (*Connected) Waits() {}

func (s *Connected) Deadline() time.Duration { return s.Limit }

func (*Connected) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do counts the Services that have moved by now.
func (s *Connected) Do(ctx context.Context) error {
	all := &corev1.ServiceList{}
	if err := s.Watch.Client.List(ctx, all); err != nil {
		return err
	}
	s.want = 0
	for i := range all.Items {
		if s.moved(&all.Items[i]) {
			s.want++
		}
	}
	return nil
}

// moved reports whether a Service is where the migration brings it. Anyone who may change a Service can have it look like that: so only what
// agents count too is counted, or they would be waited for in vain.
func (s *Connected) moved(svc *corev1.Service) bool {
	notes := svc.Annotations
	at, err := netip.ParseAddr(notes[v1alpha1.AnnotationTargetIP])
	inside := func(r netip.Prefix) bool { return r.Contains(at) }
	return err == nil && svc.DeletionTimestamp.IsZero() && slices.ContainsFunc(s.Ranges, inside) &&
		svc.Spec.Type != corev1.ServiceTypeExternalName &&
		(svc.Spec.ClusterIP == at.String() || slices.Contains(svc.Spec.ClusterIPs, at.String())) &&
		notes[v1alpha1.LabelMigration] == s.Watch.Migration &&
		notes[v1alpha1.AnnotationMovedAt] != ""
}

// Verify implements engine.Step. A Service that was deleted since it was counted would be waited for in vain: then it counts again.
func (s *Connected) Verify(ctx context.Context) error {
	missing := s.Watch.until(ctx, moment, func(t *Tally) []string { return t.Unconnected(s.want, s.Watch.nodes.ready()) })
	if len(missing) == 0 {
		return nil
	}
	if err := s.Do(ctx); err != nil {
		return err
	}
	return engine.NotYet("%s has not connected to all of them", nodes(missing))
}

// nodes names a few nodes.
func nodes(names []string) string {
	text := "node " + strings.Join(names[:min(len(names), 8)], ", ")
	if len(names) > 8 {
		text += " and others"
	}
	return text
}

// Leave is the step that waits until no agent calls addresses any more that are about to be taken away: what fails there is no loss.
type Leave struct {
	Watch *Watch
	// Addresses as texts, without ports.
	Addresses map[string]bool
	Limit     time.Duration
}

var _ engine.Waiter = (*Leave)(nil)

func (*Leave) ID() string { return "agents/leave" }

func (*Leave) Title() string { return "Stop agents from calling the addresses that go" }

func (*Leave) Waits() {}

func (s *Leave) Deadline() time.Duration { return s.Limit }

func (*Leave) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (*Leave) Do(context.Context) error { return nil }

func (s *Leave) Verify(ctx context.Context) error {
	missing := s.Watch.until(ctx, moment, func(t *Tally) []string { return t.Calling(s.Addresses, s.Watch.nodes.ready()) })
	if len(missing) > 0 {
		return engine.NotYet("%s still calls them", nodes(missing))
	}
	return nil
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
