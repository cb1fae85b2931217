package hop

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// narrowStep takes the address at which a Service has arrived off its bridge. Nodes prove nothing
// before, since kube-proxy takes Services in the order they were written (docs/design/hop.md).
type narrowStep struct {
	engine.Observed[wideBridge]

	*Steps
	progress *Progress
	to       engine.Direction
}

// wideBridge is a bridge that answers where it need not, and the one that it has to be.
type wideBridge struct {
	have *corev1.Service
	want *bridge.Bridge
}

// Narrow has each address of a hopped Service belong to one Service again. The write's answer is
// the proof: nodes are right before and after it.
func (s *Steps) Narrow(e *services.Entry, to engine.Direction) engine.Step {
	n := &narrowStep{Steps: s, progress: s.Tracker.Of(e), to: to}
	n.Observed = engine.Observed[wideBridge]{
		Name: "narrow/" + e.Key().String(), Look: n.look, Write: n.write, Changes: n.changes, Proof: noProof,
	}
	return n
}

func (n *narrowStep) Title() string {
	src, dest := n.progress.Ends(n.to)
	if n.progress.KeepsItself() {
		return fmt.Sprintf("Leave %s and %s to %s", src, dest, n.progress.Key())
	}
	return fmt.Sprintf("Leave %s to %s, and %s to its bridge", dest, n.progress.Key(), src)
}

// read starts from the answers to the hop, since the write is refused to a bridge that has changed.
func (n *narrowStep) read(ctx context.Context) (latest answers, err error) {
	latest, n.progress.answers = n.progress.answers, answers{}
	if latest.service != nil && latest.bridge != nil {
		return latest, nil
	}
	latest.service, err = n.progress.Read(ctx, n.Client)
	if err != nil || latest.service == nil {
		return latest, err
	}
	want := n.bridgeAfter(n.progress, latest.service, n.to)
	if want.Answers != bridge.Both {
		latest.bridge, err = want.Read(ctx, n.Client)
	}
	return latest, err
}

// look finds nothing to do for a Service that is gone, or that others took elsewhere.
func (n *narrowStep) look(ctx context.Context) (engine.State, wideBridge, error) {
	now, err := n.read(ctx)
	if err != nil {
		return engine.Unknown, wideBridge{}, err
	}
	svc := now.service
	if svc == nil {
		return engine.Done, wideBridge{}, nil
	}
	seen := wideBridge{want: n.bridgeAfter(n.progress, svc, n.to)}
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

func (n *narrowStep) write(ctx context.Context, seen wideBridge) error {
	if err := seen.want.Announce(ctx, n.Client, seen.have); err != nil {
		return fmt.Errorf("bridge %s: %w", seen.want.Key(), err)
	}
	return nil
}

func (n *narrowStep) changes() ([]engine.Change, error) {
	want := n.bridgeOf(n.progress, n.progress.Service)
	want.Answers = bridge.OldOnly
	switch {
	case n.progress.KeepsItself():
		want.Answers = bridge.Neither
	case n.to == engine.Backward:
		want.Answers = bridge.NewOnly
	}
	if n.progress.Bridge != nil {
		want.Form = bridge.FormOf(n.progress.Bridge)
	}
	made := want.Build()
	body := map[string]any{"status": map[string]any{"loadBalancer": made.Status.LoadBalancer}}
	if want.Form == v1alpha1.BridgeExternalIPs {
		body = map[string]any{"spec": map[string]any{"externalIPs": made.Spec.ExternalIPs}}
	}
	return []engine.Change{{Verb: "patch", Object: "Service " + want.Key().String(), Body: body}}, nil
}
