package servicecidr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Steps is what the steps that take a Service from one address to the other have in common.
type Steps struct {
	client    client.Client
	migration string
	// endpoints compares those of Services and bridges.
	endpoints *bridge.Endpoints
	// domain is the cluster's, under which the name of a Service leads to its bridge in the middle of a hop.
	domain string
	// forms are those of new bridges by namespace, form is that of all others.
	forms map[string]v1alpha1.BridgeForm
	form  v1alpha1.BridgeForm
	// pool has the addresses of the target that are free.
	pool *cidr.Pool
	// within are the ranges of the migration: no bridge answers at other addresses.
	within   []netip.Prefix
	barriers *Barriers
	now      func() time.Time
	// strategies say how each Service gets to its other address, store is where API servers keep those that go by etcd.
	strategies Strategies
	store      Store
	// observer, if set, hears of Services that have moved.
	observer Observer
	// inTransit are as many as may be between their two patches at once.
	inTransit chan struct{}
	// throttle keeps what ingress controllers lead to from them while it hops.
	throttle *bridge.Throttle
}

// bridgeOf is the bridge that a Service needs in order to hop.
func (t *Steps) bridgeOf(e *Entry, svc *corev1.Service) *bridge.Bridge {
	return &bridge.Bridge{
		Migration: t.migration,
		Service:   svc,
		Old:       e.Old,
		New:       e.New,
		Kept:      e.Kept(svc),
		Within:    t.within,
		Reserved:  len(e.reserved) > 0,
		Form:      cmp.Or(t.forms[svc.Namespace], t.form),
	}
}

// bridgeAfter is the bridge that a Service needs once it has arrived, and else the one it needs in order to hop.
func (t *Steps) bridgeAfter(e *Entry, svc *corev1.Service, to engine.Direction) *bridge.Bridge {
	b := t.bridgeOf(e, svc)
	_, dest := e.Ends(to)
	switch {
	case !IsAt(svc, dest):
	case to == engine.Backward:
		b.Answers = bridge.NewOnly
	default:
		b.Answers = bridge.OldOnly
	}
	return b
}

// reserveNew reserves the target of a Service, going to the next free address as often as another is found to have it.
func (t *Steps) reserveNew(ctx context.Context, e *Entry) error {
	for {
		if e.New.IsValid() {
			h := e.reservation(t.migration, e.New)
			err := h.Place(ctx, t.client)
			if err == nil {
				e.placed(h)
			}
			if e.allocated(err) {
				return nil
			}
			if err == nil || !isTaken(err) {
				return err
			}
		}
		next, err := t.pool.Lowest()
		if err != nil {
			return fmt.Errorf("service %s: %w", e.Key(), err)
		}
		e.New = next
	}
}

// isTaken reports whether an address could not be reserved since another has it.
func isTaken(err error) bool { return errors.As(err, new(*bridge.TakenError)) }

// answers is a Service and its bridge as the API server has answered with them; nil for what is not known. They are good for a write
// that carries their resourceVersion, and for a proof of the write that they are the answer to.
type answers struct{ service, bridge *corev1.Service }

func (t *Steps) Hop(e *Entry, to engine.Direction) engine.Step { return t.HopBeside(e, to, nil) }

func (t *Steps) HopBeside(e *Entry, to engine.Direction, beside []bridge.Routed) engine.Step {
	id := "hop/"
	if to == engine.Backward {
		id = "return/"
	}
	h := &hopStep{steps: t, entry: e, to: to, beside: beside}
	h.Observed = engine.Observed[*corev1.Service]{
		Name: id + e.Key().String(), As: engine.RoleMove,
		Look: h.look, Write: h.write, Proof: h.prove, Changes: h.changes,
		Reverse: func() engine.Step { return t.HopBeside(e, to.Opposite(), beside) },
	}
	return h
}

// Bridge has a Service answer at both of its addresses.
func (t *Steps) Bridge(e *Entry) engine.Step {
	return t.bridgeAs(e, func(svc *corev1.Service) *bridge.Bridge { return t.bridgeOf(e, svc) })
}

// Rebridge repairs the bridge of a Service that has moved.
func (t *Steps) Rebridge(e *Entry) engine.Step {
	return t.bridgeAs(e, func(svc *corev1.Service) *bridge.Bridge { return t.bridgeAfter(e, svc, engine.Forward) })
}

func (t *Steps) bridgeAs(e *Entry, want func(*corev1.Service) *bridge.Bridge) engine.Step {
	s := &bridgeStep{steps: t, entry: e, want: want}
	s.Observed = engine.Observed[unbridged]{
		Name: "bridge/" + e.Key().String(), Look: s.look, Write: s.write, Proof: s.prove, Changes: s.changes,
	}
	return s
}

func (t *Steps) Narrow(e *Entry, to engine.Direction) engine.Step {
	s := &narrowStep{steps: t, entry: e, to: to}
	s.Observed = engine.Observed[wideBridge]{
		Name: "narrow/" + e.Key().String(), Look: s.look, Write: s.write, Changes: s.changes,
		// The answer to the write is the proof. Nodes are not asked: each is right before and after it.
		Proof: func(context.Context) error { return nil },
	}
	return s
}

// Unthrottle removes what had ingress controllers gather changes when some Services hopped.
func (t *Steps) Unthrottle(name string, hopped []*Entry) engine.Step {
	var changes []engine.Change
	for _, e := range hopped {
		changes = append(changes, engine.Change{Verb: "delete", Object: nudgeName(e.Service)})
	}
	return &engine.Observed[struct{}]{
		Name: "throttle/" + name, About: "Wait for ingress controllers to see what has moved",
		Look: func(ctx context.Context) (state engine.State, none struct{}, err error) {
			state, err = engine.StateOf(t.throttle.Ended(ctx))
			return state, none, err
		},
		Write:   func(ctx context.Context, _ struct{}) error { return t.throttle.End(ctx) },
		Changes: func() ([]engine.Change, error) { return changes, nil },
	}
}

// inTransitLimit is how many Services are between the two patches of their hops at once: the more there are, the later an API server that has much to
// do answers each, and all watchers wait for that. See docs/design/hop.md, which has what it takes.
const inTransitLimit = 2
