package hop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// bridgeStep has the old address answer twice over before the Service leaves it, or repairs that.
type bridgeStep struct {
	engine.Observed[unbridged]

	*Steps
	progress *Progress
	want     func(svc *corev1.Service) *bridge.Bridge
}

// unbridged is a Service without the bridge it needs; the proof finds later changes.
type unbridged struct {
	service *corev1.Service
	missing bool
}

func (s *Steps) bridgeAs(p *Progress, want func(*corev1.Service) *bridge.Bridge) engine.Step {
	b := &bridgeStep{Steps: s, progress: p, want: want}
	b.Observed = engine.Observed[unbridged]{
		Name: "bridge/" + p.Key().String(), Look: b.look, Answered: b.write, Proof: b.prove, Changes: b.changes,
	}
	return b
}

func (b *bridgeStep) Title() string {
	p := b.progress
	if b.want(p.Service).Answers == bridge.OldOnly {
		return fmt.Sprintf("Bridge %s on %s", p.Key(), p.Old)
	}
	if kept := p.Kept(p.Service); kept.IsValid() {
		return fmt.Sprintf("Bridge %s on %s, %s and %s", p.Key(), p.Old, p.New, kept)
	}
	return fmt.Sprintf("Bridge %s on %s and %s", p.Key(), p.Old, p.New)
}

func (b *bridgeStep) look(ctx context.Context) (engine.State, unbridged, error) {
	p := b.progress
	svc, err := p.Read(ctx, b.Client)
	seen := unbridged{service: svc}
	if err != nil || svc == nil {
		return engine.Done, seen, err
	}
	if b.mayNotMove(p, svc) != "" && !services.IsAt(svc, p.New) {
		return engine.Done, seen, nil // it is skipped when its turn to hop comes
	}
	if p.Bridge == nil && p.bridge == nil { // if there is one by now, its creation is refused
		seen.missing = true
		return engine.Pending, seen, nil
	}
	_, err = b.want(svc).Proven(ctx, b.Client, b.endpoints)
	seen.missing = errors.As(err, new(*bridge.MissingError))
	switch {
	case err == nil:
		return engine.Done, seen, nil
	case seen.missing, errors.As(err, new(*bridge.DriftError)), engine.Retryable(err):
		return engine.Pending, seen, nil
	}
	return engine.Blocked, seen, err
}

// write returns a proof by the bridge that was made; the hop meets later changes of the Service.
func (b *bridgeStep) write(ctx context.Context, seen unbridged) (func(context.Context) error, error) {
	if err := b.reserve(ctx, seen.service); err != nil {
		return nil, err
	}
	want := b.want(seen.service)
	if seen.missing {
		made, err := want.Make(ctx, b.Client, b.Pool)
		if err == nil {
			b.progress.bridge = made
			return func(ctx context.Context) error {
				return b.want(seen.service).Fits(ctx, made, b.endpoints)
			}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	return nil, want.Ensure(ctx, b.Client, b.Pool)
}

// reserve has both addresses belong to the Service before a bridge answers at them.
func (b *bridgeStep) reserve(ctx context.Context, svc *corev1.Service) (err error) {
	p := b.progress
	if p.Original == "" {
		if p.Original, err = services.OriginalOf(&svc.Spec); err != nil {
			return fmt.Errorf("service %s: %w", p.Key(), err)
		}
	}
	if !services.IsAt(svc, p.New) {
		if err := b.reserveNew(ctx, p); err != nil {
			return err
		}
	}
	if services.IsAt(svc, p.Old) {
		return nil
	}
	left := p.Reservation(b.Migration, p.Old)
	if left.UID != "" && left.Check(ctx, b.Client) == nil {
		return nil
	}
	if err := left.PlaceAfter(ctx, b.Client, p.Key()); err != nil {
		return fmt.Errorf("service %s: its old address: %w", p.Key(), err)
	}
	p.recordHold(left)
	return nil
}

func (b *bridgeStep) prove(ctx context.Context) error {
	svc, err := b.progress.Read(ctx, b.Client)
	if err != nil || svc == nil {
		return err
	}
	_, err = b.want(svc).Proven(ctx, b.Client, b.endpoints)
	return err
}

func (b *bridgeStep) changes() ([]engine.Change, error) {
	p := b.progress
	want := b.want(p.Service)
	verb := "create"
	if p.Bridge != nil {
		verb, want.Form = "update", bridge.FormOf(p.Bridge)
	}
	var changes []engine.Change
	for _, a := range []netip.Addr{p.New, p.Old} {
		_, reserved := p.Reserved[a]
		if !services.IsAt(p.Service, a) && (a == p.New || !reserved) {
			hold := &bridge.Hold{Migration: b.Migration, Address: a, Bridge: want.Key()}
			changes = append(changes, engine.Change{Verb: "create", Object: "IPAddress " + a.String(), Body: hold.Build()})
		}
	}
	object := want.Key().String()
	changes = append(changes, engine.Change{Verb: verb, Object: "Service " + object, Body: want.Build()})
	if p.Mirrored() {
		changes = append(changes, engine.Change{Verb: verb, Object: "EndpointSlice " + object + "-… (copies of the Service's)"})
	}
	return changes, nil
}
