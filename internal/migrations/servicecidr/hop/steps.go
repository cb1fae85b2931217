// Package hop takes Services from one address to the other, with a bridge that answers at both.
// step.go and patches.go change the ClusterIP.
package hop

import (
	"cmp"
	"context"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// Steps makes the steps that take Services from one address to the other.
type Steps struct {
	Client    client.Client
	Migration string
	// Domain is the cluster's, under which the name of a Service leads to its bridge while it hops.
	Domain string
	// Forms are those of new bridges by namespace, Form is that of all others.
	Forms map[string]v1alpha1.BridgeForm
	Form  v1alpha1.BridgeForm
	// Labels are on bridges, and on the canary, beside replumb's own.
	Labels map[string]string
	Pool   *cidr.Allocator
	// Within are the ranges of the migration: no bridge answers at other addresses.
	Within     []netip.Prefix
	Barriers   *Barriers
	Now        func() time.Time
	Strategies services.Strategies
	// Store is where API servers keep those that go by etcd.
	Store exchange.Store
	// OnMove, if set, gets each Service that has got to its other address.
	OnMove func(migration.Move)
	// OnStranded, if set, gets each Service that was refused an address between its patches.
	OnStranded func(types.UID, Stranded)
	Tracker    *Tracker

	endpoints *bridge.Endpoints
	// throttle keeps hops from ingress controllers that lead to the Service.
	throttle *bridge.Throttle
	// inTransit are as many Services as may be between their two patches at once.
	inTransit chan struct{}
}

// inTransitLimit bounds the Services between their two patches: the more there are, the later a
// busy API server answers each (docs/design/hop.md).
const inTransitLimit = 2

// NewSteps makes them ready.
func NewSteps(s Steps) *Steps {
	s.endpoints = &bridge.Endpoints{Client: s.Client}
	s.throttle = &bridge.Throttle{Client: s.Client, Migration: s.Migration}
	s.inTransit = make(chan struct{}, inTransitLimit)
	return &s
}

// Bridge has a Service answer at both of its addresses.
func (s *Steps) Bridge(e *services.Entry) engine.Step {
	p := s.Tracker.Of(e)
	if e.Exchanges() {
		return s.own(p)
	}
	return s.bridgeAs(p, func(svc *corev1.Service) *bridge.Bridge { return s.bridgeOf(p, svc) })
}

// Rebridge repairs what keeps the old address of a Service that has moved.
func (s *Steps) Rebridge(e *services.Entry) engine.Step {
	p := s.Tracker.Of(e)
	if e.KeepsItself() {
		return s.own(p)
	}
	return s.bridgeAs(p, func(svc *corev1.Service) *bridge.Bridge {
		return s.bridgeAfter(p, svc, engine.Forward)
	})
}

// BridgeIsStale reports whether a moved Service lacks what it needs to answer at its old address.
func (s *Steps) BridgeIsStale(e *services.Entry) bool {
	if e.KeepsItself() {
		form, _ := ownaddress.FormOf(e.Service, e.Old)
		_, reserved := e.Reserved[e.Old]
		return form != e.Overlap.Form || !reserved
	}
	want := s.bridgeAfter(s.Tracker.Of(e), e.Service, engine.Forward)
	if e.Bridge != nil {
		want.Form = bridge.FormOf(e.Bridge)
	}
	return e.Bridge == nil || e.Mirrored() || bridge.Difference(e.Bridge, want.Build(), true) != nil
}

func (s *Steps) bridgeOf(p *Progress, svc *corev1.Service) *bridge.Bridge {
	return &bridge.Bridge{
		Migration: s.Migration,
		Service:   svc,
		Old:       p.Old,
		New:       p.New,
		Kept:      p.Kept(svc),
		Within:    s.Within,
		Reserved:  len(p.Reserved) > 0,
		Form:      cmp.Or(s.Forms[svc.Namespace], s.Form),
		Labels:    s.Labels,
	}
}

// bridgeAfter is bridgeOf until the Service has arrived, and answers at one address from then on,
// or at neither if the Service answers at both.
func (s *Steps) bridgeAfter(p *Progress, svc *corev1.Service, to engine.Direction) *bridge.Bridge {
	b := s.bridgeOf(p, svc)
	src, dest := p.Ends(to)
	_, itself := ownaddress.FormOf(svc, src)
	switch {
	case !services.IsAt(svc, dest):
	case p.KeepsItself() && itself:
		b.Answers = bridge.Neither
	case to == engine.Backward:
		b.Answers = bridge.NewOnly
	default:
		b.Answers = bridge.OldOnly
	}
	return b
}

func (s *Steps) reserveNew(ctx context.Context, p *Progress) error {
	return p.reserveNew(ctx, s.Client, s.Migration, s.Pool)
}

// mayNotMove says why a Service, as just read, may not move; empty in the middle of a hop.
func (s *Steps) mayNotMove(p *Progress, svc *corev1.Service) string {
	if p.IsInTransit(svc, s.Domain) {
		return ""
	}
	_, reason := s.Strategies.Evaluate(p.AsOwned(svc))
	return reason.Text
}
