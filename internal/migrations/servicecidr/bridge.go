package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// bridgeStep has the old address answer twice over before the Service leaves it, or repairs what answers for one that has.
type bridgeStep struct {
	engine.Observed[unbridged]

	steps *Steps
	entry *Entry
	// want is the bridge that the Service needs as it is.
	want func(svc *corev1.Service) *bridge.Bridge
	// made is what the write was answered with, for the first proof.
	made *answers
}

// unbridged is a Service without the bridge it needs. If it has changed by the time the bridge is written, the proof finds the
// bridge wrong.
type unbridged struct {
	service *corev1.Service
	// missing is true if there is no bridge at all.
	missing bool
}

func (s *bridgeStep) Title() string {
	if s.want(s.entry.Service).Answers == bridge.OldOnly {
		return fmt.Sprintf("Bridge %s on %s", s.entry.Key(), s.entry.Old)
	}
	if kept := s.entry.Kept(s.entry.Service); kept.IsValid() {
		return fmt.Sprintf("Bridge %s on %s, %s and %s", s.entry.Key(), s.entry.Old, s.entry.New, kept)
	}
	return fmt.Sprintf("Bridge %s on %s and %s", s.entry.Key(), s.entry.Old, s.entry.New)
}

func (s *bridgeStep) look(ctx context.Context) (engine.State, unbridged, error) {
	svc, err := readService(ctx, s.steps.client, s.entry)
	seen := unbridged{service: svc}
	if err != nil || svc == nil {
		return engine.Done, seen, err
	}
	if _, reason := s.steps.strategies.Evaluate(svc); reason.Kind != "" && !IsInTransit(svc, s.steps.domain) && !IsAt(svc, s.entry.New) {
		return engine.Done, seen, nil // it leaves, when its turn to hop comes
	}
	if s.entry.Bridge == nil && s.entry.latest.bridge == nil { // if there is one by now, its creation is refused
		seen.missing = true
		return engine.Pending, seen, nil
	}
	_, err = s.want(svc).Proven(ctx, s.steps.client, s.steps.endpoints)
	seen.missing = errors.As(err, new(*bridge.MissingError))
	switch {
	case err == nil:
		return engine.Done, seen, nil
	case seen.missing, errors.As(err, new(*bridge.DriftError)), engine.Retryable(err):
		return engine.Pending, seen, nil
	}
	return engine.Blocked, seen, err
}

func (s *bridgeStep) write(ctx context.Context, seen unbridged) error {
	t := s.steps
	if err := s.reserve(ctx, seen.service); err != nil {
		return err
	}
	b := s.want(seen.service)
	s.made = nil
	if seen.missing {
		made, err := b.Make(ctx, t.client, t.pool)
		if err == nil {
			s.entry.latest.bridge, s.made = made, &answers{service: seen.service, bridge: made}
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return b.Ensure(ctx, t.client, t.pool)
}

// reserve has both addresses belong to the Service before a bridge answers at them: those that it is not at by a reservation.
func (s *bridgeStep) reserve(ctx context.Context, svc *corev1.Service) (err error) {
	t, e := s.steps, s.entry
	if e.Original == "" {
		if e.Original, err = OriginalOf(&svc.Spec); err != nil {
			return fmt.Errorf("service %s: %w", e.Key(), err)
		}
	}
	if !IsAt(svc, e.New) {
		if err := t.reserveNew(ctx, e); err != nil {
			return err
		}
	}
	if IsAt(svc, e.Old) {
		return nil
	}
	left := e.reservation(t.migration, e.Old)
	if left.UID != "" && left.Check(ctx, t.client) == nil {
		return nil
	}
	if err := left.PlaceAfter(ctx, t.client, e.Key()); err != nil {
		return fmt.Errorf("service %s: its old address: %w", e.Key(), err)
	}
	e.placed(left)
	return nil
}

// prove takes the answer to the write for what there is, once. A Service that has changed since is met by its hop.
func (s *bridgeStep) prove(ctx context.Context) error {
	if made := s.made; made != nil {
		s.made = nil
		return s.want(made.service).Fits(ctx, made.bridge, s.steps.endpoints)
	}
	svc, err := readService(ctx, s.steps.client, s.entry)
	if err != nil || svc == nil {
		return err
	}
	_, err = s.want(svc).Proven(ctx, s.steps.client, s.steps.endpoints)
	return err
}

func (s *bridgeStep) changes() ([]engine.Change, error) {
	b := s.want(s.entry.Service)
	verb := "create"
	if s.entry.Bridge != nil {
		verb, b.Form = "update", bridge.FormOf(s.entry.Bridge)
	}
	var changes []engine.Change
	for _, a := range []netip.Addr{s.entry.New, s.entry.Old} {
		_, reserved := s.entry.reserved[a]
		if !IsAt(s.entry.Service, a) && (a == s.entry.New || !reserved) {
			hold := &bridge.Hold{Migration: s.steps.migration, Address: a, Bridge: b.Key()}
			changes = append(changes, engine.Change{Verb: "create", Object: "IPAddress " + a.String(), Body: hold.Build()})
		}
	}
	changes = append(changes, engine.Change{Verb: verb, Object: "Service " + b.Key().String(), Body: b.Build()})
	if s.entry.Mirrored() {
		changes = append(changes, engine.Change{Verb: verb, Object: "EndpointSlice " + b.Key().String() + "-… (copies of the Service's)"})
	}
	return changes, nil
}
