package hop

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// unbridgeStep removes the bridge of a Service that has moved and answers at both addresses itself.
// Cluster DNS may have led clients to the bridge's own address in the hop, so it comes after drain.
type unbridgeStep struct {
	engine.Observed[answers]

	*Steps
	progress *Progress
	users    Users
	note     string
}

// Users tells who uses an address; empty, if nobody is seen to.
type Users func(ctx context.Context, address string) (string, error)

// Unbridge has nothing but the Service itself answer at its addresses. A bridge whose own address
// is used stays, and finish waits for its clients.
func (s *Steps) Unbridge(e *services.Entry, users Users) engine.Step {
	u := &unbridgeStep{Steps: s, progress: s.Tracker.Of(e), users: users}
	u.Observed = engine.Observed[answers]{
		Name: "unbridge/" + e.Key().String(), About: fmt.Sprintf("Remove the bridge of %s, which answers at both addresses itself", e.Key()),
		Look: u.look, Write: u.write, Proof: u.prove,
		Changes: func() ([]engine.Change, error) {
			return release.BridgeDeletion(e.BridgeKey(), e.Service.Spec.Selector), nil
		},
	}
	return u
}

// look leaves a bridge that is still needed, or that is not replumb's.
func (u *unbridgeStep) look(ctx context.Context) (engine.State, answers, error) {
	p := u.progress
	svc, err := p.Read(ctx, u.Client)
	if err != nil || svc == nil || !p.KeepsItself() || !services.IsAt(svc, p.New) {
		return engine.Done, answers{}, err
	}
	have := &corev1.Service{}
	err = u.Client.Get(ctx, p.BridgeKey(), have)
	switch {
	case apierrors.IsNotFound(err), err == nil && !bridge.Named(have, svc.UID):
		return engine.Done, answers{}, nil
	case err != nil:
		return engine.Unknown, answers{}, fmt.Errorf("bridge %s: %w", p.BridgeKey(), err)
	}
	for _, own := range have.Spec.ClusterIPs {
		by, err := u.users(ctx, own)
		if err != nil || by != "" {
			u.note = fmt.Sprintf("bridge %s stays until finish, for %s uses its own address %s", p.BridgeKey(), by, own)
			return engine.Done, answers{}, err
		}
	}
	return engine.Pending, answers{service: svc, bridge: have}, nil
}

// Note says why a bridge stays.
func (u *unbridgeStep) Note() string { return u.note }

func (u *unbridgeStep) write(ctx context.Context, seen answers) error {
	if form, there := ownaddress.FormOf(seen.service, u.progress.Old); !there || form != u.progress.Overlap.Form {
		if err := (&ownStep{Steps: u.Steps, progress: u.progress}).add(ctx, seen.service); err != nil {
			return err
		}
	}
	if err := bridge.Delete(ctx, u.Client, seen.bridge); err != nil {
		return fmt.Errorf("bridge %s: %w", u.progress.BridgeKey(), err)
	}
	return nil
}

func (u *unbridgeStep) prove(ctx context.Context) error {
	have := &corev1.Service{}
	err := u.Client.Get(ctx, u.progress.BridgeKey(), have)
	if err == nil && bridge.Named(have, u.progress.Service.UID) {
		return engine.NotYet("bridge %s is still there", u.progress.BridgeKey())
	}
	return client.IgnoreNotFound(err)
}
