package servicecidr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// transit is what the steps that take a Service from one address to the other have in common.
type transit struct {
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
	barriers *barriers
	now      func() time.Time
	// strategies say how each Service gets to its other address, store is where API servers keep those that go by etcd.
	strategies strategies
	store      Store
	// observer, if set, hears of Services that have moved.
	observer Observer
	// crossings are as many as may be between their two patches at once.
	crossings chan struct{}
	// throttle keeps what ingress controllers lead to from them while it hops.
	throttle *bridge.Throttle
}

// bridgeOf is the bridge that a Service needs in order to hop.
func (t *transit) bridgeOf(e *Entry, svc *corev1.Service) *bridge.Bridge {
	return &bridge.Bridge{
		Migration: t.migration,
		Service:   svc,
		Old:       e.Old,
		New:       e.New,
		Kept:      e.kept(svc),
		Within:    t.within,
		Reserved:  len(e.reserved) > 0,
		Form:      cmp.Or(t.forms[svc.Namespace], t.form),
	}
}

// bridgeAfter is the bridge that a Service needs once it has arrived, and else the one it needs in order to hop.
func (t *transit) bridgeAfter(e *Entry, svc *corev1.Service, to engine.Direction) *bridge.Bridge {
	b := t.bridgeOf(e, svc)
	_, dest := e.ends(to)
	switch {
	case !isAt(svc, dest):
	case to == engine.Backward:
		b.Answers = bridge.NewOnly
	default:
		b.Answers = bridge.OldOnly
	}
	return b
}

// reserve reserves the target of a Service, going to the next free address as often as another is found to have it.
func (t *transit) reserve(ctx context.Context, e *Entry) error {
	for {
		if e.New.IsValid() {
			h := e.reservation(t.migration, e.New)
			err := h.Create(ctx, t.client)
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

// barriers make the proofs that every node knows what was written before.
type barriers struct {
	client    client.Client
	migration string
	pool      *cidr.Pool
	witness   bridge.Witness
	// agents are asked alone where only they can tell; nil if barriers are passed without them.
	agents bridge.Witness
	mode   v1alpha1.BarrierMode
	// wait is how long mode Wait lets pass; limit is how long nodes may take to prove.
	wait, limit time.Duration
	now         func() time.Time
	// also is the family in which nodes have to know bridges beside that of pool; empty, if there is none.
	also corev1.IPFamily
	// passing is held by a barrier within a step: a barrier begins by removing the sentinels that others of its migration left.
	passing sync.Mutex
}

// step is the barrier after something that is named. In mode Wait it proves nothing; a finding says so.
func (b *barriers) step(name string) engine.Step {
	if b.mode == v1alpha1.BarrierWait {
		return &migration.PauseStep{
			Name: "barrier/" + name, Length: b.wait, Now: b.now,
			About: fmt.Sprintf("Give nodes %s to learn the bridges of %s (not proven)", b.wait, name),
		}
	}
	return b.proof(name)
}

func (b *barriers) proof(name string) *bridge.Barrier {
	return &bridge.Barrier{
		Client: b.client, Witness: b.witness, Pool: b.pool, Migration: b.migration, Name: name, Limit: b.limit,
		Also: b.also,
	}
}

// pass passes a barrier within a step.
func (b *barriers) pass(ctx context.Context, name string) error {
	b.passing.Lock()
	defer b.passing.Unlock()
	return engine.Drive(ctx, b.step(name))
}

// bridgeStep has the old address answer twice over before the Service leaves it, or repairs what answers for one that has.
type bridgeStep struct {
	engine.Observed[unbridged]

	transit *transit
	entry   *Entry
	// want is the bridge that the Service needs as it is.
	want func(svc *corev1.Service) *bridge.Bridge
	// made is what the write was answered with, for the first proof.
	made *answer
}

// unbridged is a Service without the bridge it needs. If it has changed by the time the bridge is written, the proof finds the
// bridge wrong.
type unbridged struct {
	service *corev1.Service
	// missing is true if there is no bridge at all.
	missing bool
}

// bridge has a Service answer at both of its addresses.
func (t *transit) bridge(e *Entry) engine.Step {
	return t.bridgeAs(e, func(svc *corev1.Service) *bridge.Bridge { return t.bridgeOf(e, svc) })
}

// rebridge repairs the bridge of a Service that has moved.
func (t *transit) rebridge(e *Entry) engine.Step {
	return t.bridgeAs(e, func(svc *corev1.Service) *bridge.Bridge { return t.bridgeAfter(e, svc, engine.Forward) })
}

func (t *transit) bridgeAs(e *Entry, want func(*corev1.Service) *bridge.Bridge) engine.Step {
	s := &bridgeStep{transit: t, entry: e, want: want}
	s.Observed = engine.Observed[unbridged]{
		Name: "bridge/" + e.Key().String(), Look: s.look, Write: s.write, Proof: s.prove, Changes: s.changes,
	}
	return s
}

func (s *bridgeStep) Title() string {
	if s.want(s.entry.Service).Answers == bridge.OldOnly {
		return fmt.Sprintf("Bridge %s on %s", s.entry.Key(), s.entry.Old)
	}
	if kept := s.entry.kept(s.entry.Service); kept.IsValid() {
		return fmt.Sprintf("Bridge %s on %s, %s and %s", s.entry.Key(), s.entry.Old, s.entry.New, kept)
	}
	return fmt.Sprintf("Bridge %s on %s and %s", s.entry.Key(), s.entry.Old, s.entry.New)
}

func (s *bridgeStep) look(ctx context.Context) (engine.State, unbridged, error) {
	svc, err := readService(ctx, s.transit.client, s.entry)
	seen := unbridged{service: svc}
	if err != nil || svc == nil {
		return engine.Done, seen, err
	}
	if _, reason := s.transit.strategies.judge(svc); reason.Kind != "" && !crossing(svc, s.transit.domain) && !isAt(svc, s.entry.New) {
		return engine.Done, seen, nil // it leaves, when its turn to hop comes
	}
	if s.entry.Bridge == nil && s.entry.latest.bridge == nil { // if there is one by now, its creation is refused
		seen.missing = true
		return engine.Pending, seen, nil
	}
	_, err = s.want(svc).Proven(ctx, s.transit.client, s.transit.endpoints)
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
	t := s.transit
	if err := s.reserve(ctx, seen.service); err != nil {
		return err
	}
	b := s.want(seen.service)
	s.made = nil
	if seen.missing {
		made, err := b.Make(ctx, t.client, t.pool)
		if err == nil {
			s.entry.latest.bridge, s.made = made, &answer{service: seen.service, bridge: made}
		}
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return b.Ensure(ctx, t.client, t.pool)
}

// reserve has both addresses belong to the Service before a bridge answers at them: those that it is not at by a reservation.
func (s *bridgeStep) reserve(ctx context.Context, svc *corev1.Service) (err error) {
	t, e := s.transit, s.entry
	if e.leaving == "" {
		if e.leaving, err = essence(&svc.Spec); err != nil {
			return fmt.Errorf("service %s: %w", e.Key(), err)
		}
	}
	if !isAt(svc, e.New) {
		if err := t.reserve(ctx, e); err != nil {
			return err
		}
	}
	if isAt(svc, e.Old) {
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
		return s.want(made.service).Fits(ctx, made.bridge, s.transit.endpoints)
	}
	svc, err := readService(ctx, s.transit.client, s.entry)
	if err != nil || svc == nil {
		return err
	}
	_, err = s.want(svc).Proven(ctx, s.transit.client, s.transit.endpoints)
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
		if !isAt(s.entry.Service, a) && (a == s.entry.New || !reserved) {
			hold := &bridge.Hold{Migration: s.transit.migration, Address: a, Bridge: b.Key()}
			changes = append(changes, engine.Change{Verb: "create", Object: "IPAddress " + a.String(), Body: hold.Build()})
		}
	}
	changes = append(changes, engine.Change{Verb: verb, Object: "Service " + b.Key().String(), Body: b.Build()})
	if s.entry.Mirrored() {
		changes = append(changes, engine.Change{Verb: verb, Object: "EndpointSlice " + b.Key().String() + "-… (copies of the Service's)"})
	}
	return changes, nil
}
