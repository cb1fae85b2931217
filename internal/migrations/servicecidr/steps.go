package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

func (t Tools) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

// bridgeStep makes the old address answer twice over before the Service leaves it.
type bridgeStep struct {
	planner *Planner
	entry   *Entry
	// seen is the Service as State saw it, for the Do that follows; if it changed in between, Verify finds the bridge wrong.
	seen *corev1.Service
	// missed is true if State saw no bridge.
	missed bool
}

var _ engine.Previewer = (*bridgeStep)(nil)

func (s *bridgeStep) ID() string { return "bridge/" + s.entry.Key().String() }
func (s *bridgeStep) Title() string {
	return fmt.Sprintf("Bridge %s on %s and %s", s.entry.Key(), s.entry.Old, s.entry.New)
}
func (s *bridgeStep) client() client.Client { return s.planner.Tools.Cluster }

func (s *bridgeStep) State(ctx context.Context) (engine.State, error) {
	svc, err := readService(ctx, s.client(), s.entry)
	s.seen = svc
	if err != nil || svc == nil {
		return engine.Done, err
	}
	err = s.planner.bridgeOf(s.entry, svc).Proven(ctx, s.client())
	var missing *bridge.MissingError
	var drift *bridge.DriftError
	s.missed = errors.As(err, &missing)
	switch {
	case err == nil:
		return engine.Done, nil
	case s.missed, errors.As(err, &drift), engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Blocked, err
}

func (s *bridgeStep) Do(ctx context.Context) error {
	svc, err := lately(ctx, s.client(), s.entry, &s.seen)
	if err != nil || svc == nil {
		return err
	}
	if svc.Spec.ClusterIP != s.entry.New.String() {
		if err := s.planner.place(ctx, s.entry); err != nil {
			return err
		}
	}
	b := s.planner.bridgeOf(s.entry, svc)
	if s.missed {
		s.missed = false
		if err := b.Make(ctx, s.client(), s.planner.Survey.Pool); !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return b.Ensure(ctx, s.client(), s.planner.Survey.Pool)
}

func (s *bridgeStep) Verify(ctx context.Context) error {
	svc, err := readService(ctx, s.client(), s.entry)
	if err != nil || svc == nil {
		return err
	}
	return s.planner.bridgeOf(s.entry, svc).Proven(ctx, s.client())
}

func (s *bridgeStep) Preview() ([]engine.Change, error) {
	b := s.planner.bridgeOf(s.entry, s.entry.Service)
	hold := &bridge.Hold{Migration: s.planner.spec().Name, Address: s.entry.New, Bridge: b.Key()}
	verb := "create"
	if s.entry.Bridge != nil {
		verb, b.Form = "update", bridge.FormOf(s.entry.Bridge)
	}
	var changes []engine.Change
	if s.entry.Place != Moved {
		changes = append(changes, engine.Change{Verb: "create", Object: "IPAddress " + s.entry.New.String(), Body: hold.Build()})
	}
	return append(changes, engine.Change{Verb: verb, Object: "Service " + b.Key().String(), Body: b.Build()}), nil
}

// place holds the target of a Service, going to the next free address as often as somebody else is found to have it.
func (p *Planner) place(ctx context.Context, e *Entry) error {
	for {
		if e.New.IsValid() {
			h := e.hold(p.spec().Name, e.New)
			err := h.Place(ctx, p.Tools.Cluster)
			if err == nil {
				e.placed(h)
			}
			if err == nil || !isTakenBySomebody(err) {
				return err
			}
		}
		next, err := p.Survey.Pool.Lowest()
		if err != nil {
			return fmt.Errorf("service %s: %w", e.Key(), err)
		}
		e.New = next
	}
}

func isTakenBySomebody(err error) bool {
	var taken *bridge.TakenError
	return errors.As(err, &taken)
}

// drainStep waits until the latest move is long enough ago. When that was is written on the Services.
type drainStep struct {
	tools     Tools
	migration string
	length    time.Duration
}

func (s *drainStep) ID() string { return "drain" }
func (s *drainStep) Title() string {
	return fmt.Sprintf("Wait until the last move is %s ago", s.length)
}
func (s *drainStep) Waits()                  {}
func (s *drainStep) Deadline() time.Duration { return s.length + time.Minute }
func (s *drainStep) State(ctx context.Context) (engine.State, error) {
	err := s.Verify(ctx)
	if engine.Retryable(err) {
		return engine.Pending, nil
	}
	return engine.Done, err
}
func (s *drainStep) Do(context.Context) error { return nil }
func (s *drainStep) Verify(ctx context.Context) error {
	services := &corev1.ServiceList{}
	if err := s.tools.Cluster.List(ctx, services); err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	var latest time.Time
	for i := range services.Items {
		notes := services.Items[i].Annotations
		at, err := time.Parse(time.RFC3339Nano, notes[v1alpha1.AnnotationMovedAt])
		if err == nil && notes[v1alpha1.LabelMigration] == s.migration && at.After(latest) {
			latest = at
		}
	}
	if until := latest.Add(s.length); until.After(s.tools.now()) {
		return engine.NotYet("until %s", until.Local().Format(time.TimeOnly))
	}
	return nil
}
