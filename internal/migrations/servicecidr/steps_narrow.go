package servicecidr

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
)

// narrowStep takes the address at which a Service has arrived off its bridge, which goes on answering at the other.
//
// No node has to prove anything before. kube-proxy takes up Services in the order in which they were written, and patch B was written
// before this: one that knows that the bridge has given the address up knows that the Service is at it, and a sync that takes up both
// writes both in one transaction. See docs/design/hop.md.
type narrowStep struct {
	engine.Observed[wideBridge]

	transit *transit
	entry   *Entry
	to      engine.Direction
}

// wideBridge is a bridge that was seen to answer where it need not, and the bridge that it has to be.
type wideBridge struct {
	have *corev1.Service
	want *bridge.Bridge
}

func (t *transit) narrow(e *Entry, to engine.Direction) engine.Step {
	s := &narrowStep{transit: t, entry: e, to: to}
	s.Observed = engine.Observed[wideBridge]{
		Name: "narrow/" + e.Key().String(), Look: s.look, Write: s.write, Changes: s.changes,
		// The answer to the write is the proof. Nodes are not asked: each is right before and after it.
		Proof: func(context.Context) error { return nil },
	}
	return s
}

func (s *narrowStep) Title() string {
	src, dest := s.entry.ends(s.to)
	return fmt.Sprintf("Leave %s to %s, and %s to its bridge", dest, s.entry.Key(), src)
}

// read returns the Service and its bridge: at first as the hop has just been answered with them, since the write is refused to a bridge that
// has changed.
func (s *narrowStep) read(ctx context.Context) (latest answer, err error) {
	latest, s.entry.latest = s.entry.latest, answer{}
	if latest.service != nil && latest.bridge != nil {
		return latest, nil
	}
	if latest.service, err = readService(ctx, s.transit.client, s.entry); err != nil || latest.service == nil {
		return latest, err
	}
	want := s.transit.bridgeAfter(s.entry, latest.service, s.to)
	if want.Answers != bridge.Both {
		latest.bridge, err = want.Read(ctx, s.transit.client)
	}
	return latest, err
}

// look finds nothing to do for a Service that is gone, or that others took elsewhere.
func (s *narrowStep) look(ctx context.Context) (engine.State, wideBridge, error) {
	now, err := s.read(ctx)
	if err != nil {
		return engine.Unknown, wideBridge{}, err
	}
	svc := now.service
	if svc == nil {
		return engine.Done, wideBridge{}, nil
	}
	seen := wideBridge{want: s.transit.bridgeAfter(s.entry, svc, s.to)}
	if seen.want.Answers == bridge.Both {
		return engine.Done, seen, nil
	}
	seen.have = now.bridge
	seen.want.Form = bridge.FormOf(seen.have)
	switch err := bridge.Difference(seen.have, seen.want.Build(), seen.want.Reserved); {
	case err == nil:
		return engine.Done, seen, nil
	case errors.As(err, new(*bridge.DriftError)):
		return engine.Pending, seen, nil
	default:
		return engine.Blocked, seen, err
	}
}

func (s *narrowStep) write(ctx context.Context, seen wideBridge) error {
	if err := seen.want.Announce(ctx, s.transit.client, seen.have); err != nil {
		return fmt.Errorf("bridge %s: %w", seen.want.Key(), err)
	}
	return nil
}

func (s *narrowStep) changes() ([]engine.Change, error) {
	want := s.transit.bridgeOf(s.entry, s.entry.Service)
	want.Answers = bridge.OldOnly
	if s.to == engine.Backward {
		want.Answers = bridge.NewOnly
	}
	if s.entry.Bridge != nil {
		want.Form = bridge.FormOf(s.entry.Bridge)
	}
	made := want.Build()
	body := map[string]any{"status": map[string]any{"loadBalancer": made.Status.LoadBalancer}}
	if len(made.Spec.ExternalIPs) > 0 {
		body = map[string]any{"spec": map[string]any{"externalIPs": made.Spec.ExternalIPs}}
	}
	return []engine.Change{{Verb: "patch", Object: "Service " + want.Key().String(), Body: body}}, nil
}

// NoReturnError says that admission would not let a bridge answer at the address that its Service has to leave: without that there is
// no way back that loses nothing.
type NoReturnError struct {
	Err error
}

func (e *NoReturnError) Error() string {
	return "services cannot go back, since a bridge must not answer at both addresses again: " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *NoReturnError) Unwrap() error { return e.Err }

// ExitCode implements fault.Coder: nothing was written.
func (*NoReturnError) ExitCode() int { return fault.ExitBlocked }

func (*NoReturnError) Advice() string {
	return "have admission take changes of Services with the label replumb.dev/role=bridge for the time of the rollback, then run it again"
}

// returnable asks by dry run, in every namespace, whether bridges may take the addresses on again that Services have to leave. A bridge
// that answers at both still needs no leave.
func (j *Job) returnable(ctx context.Context) error {
	snap, err := cluster.Load(ctx, j.Tools.Cluster)
	if err != nil {
		return err
	}
	survey, err := j.places(ctx, snap)
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	for _, e := range survey.everything() {
		b := &bridge.Bridge{Migration: j.Spec.Name, Service: e.Service, Old: e.Old, New: e.New, Kept: e.kept(e.Service)}
		if !e.away() || e.Bridge == nil || asked[e.Service.Namespace] || !b.Grows(e.Bridge) {
			continue
		}
		asked[e.Service.Namespace] = true
		switch err := b.Admitted(ctx, j.Tools.Cluster, e.Bridge); {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return &NoReturnError{Err: err}
		case err != nil:
			return err
		}
	}
	return nil
}
