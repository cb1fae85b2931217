package hop

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// Reserve reserves the targets of Services that etcd moves, so that no other is given them before
// they answer there. Each that is refused is left to the Service's own step, which does it by the
// API or finds another target.
func (s *Steps) Reserve(name string, all []*services.Entry) engine.Step {
	return s.together("reserve/"+name, "Reserve the addresses to which the Services of "+name+" go", all, engine.Forward,
		exchange.Writes.Reservation, s.reservation)
}

// Give makes reserved targets the Services' own, some moments before they are at them: API servers
// have seen that by then, and need not repair it. Services that have changed meanwhile are left to
// their own steps.
func (s *Steps) Give(name string, all []*services.Entry, to engine.Direction) engine.Step {
	return s.together("give/"+name, "Give the Services of "+name+" the IPAddresses of their other addresses", all, to,
		exchange.Writes.Gift, s.gift)
}

// prepared is a write to etcd about one Service, and what is noted of it once it is made.
type prepared struct {
	stored.Exchange

	made func()
}

// together writes to etcd what is prepared of each Service. Errors are left to the Service's own
// step, which does the same before anything else.
func (s *Steps) together(
	id, about string, all []*services.Entry, to engine.Direction,
	shown func(exchange.Writes) engine.Change, prepare func(*hopStep) *prepared,
) engine.Step {
	var steps []*hopStep
	var changes []engine.Change
	role := engine.RoleOwn // of Services that agents call alone
	for _, e := range all {
		if !services.IsOwn(e.Service) {
			role = engine.RoleWrite
		}
		h := &hopStep{Steps: s, progress: s.Tracker.Of(e), to: to}
		steps, changes = append(steps, h), append(changes, shown(h.etcd()))
	}
	return &engine.Observed[struct{}]{
		Name: id, About: about, As: role,
		Look: func(context.Context) (engine.State, struct{}, error) { return engine.Pending, struct{}{}, nil },
		Write: func(ctx context.Context, _ struct{}) error {
			var some []*prepared
			var exchanges []stored.Exchange
			for _, h := range steps {
				if p := prepare(h); p != nil && s.Store != nil {
					some, exchanges = append(some, p), append(exchanges, p.Exchange)
				}
			}
			if len(some) == 0 {
				return nil
			}
			for i, err := range s.Store.Exchange(ctx, exchanges...) {
				if err == nil {
					some[i].made()
				} else if engine.Revoked(err) {
					return err
				}
			}
			return nil
		},
		Proof:   noProof,
		Changes: engine.Shows(changes...),
	}
}

// reservation is nil for a target that is reserved already.
func (s *Steps) reservation(h *hopStep) *prepared {
	p := h.progress
	if _, reserved := p.Reserved[p.New]; reserved || !cidr.Contains(s.Within, p.New) ||
		!services.IsAt(p.Service, p.Old) || h.mayNotMove(p, p.Service) != "" || p.noteOwned(p.Service) != nil {
		return nil
	}
	x, hold := h.etcd().Reserve()
	return &prepared{Exchange: x, made: func() { p.recordHold(hold) }}
}

func (s *Steps) gift(h *hopStep) *prepared {
	p := h.progress
	if src, _ := h.ends(); p.service == nil || !services.IsAt(p.service, src) {
		return nil
	}
	x := h.etcd().Give(p.service)
	return &prepared{Exchange: x, made: func() { p.given = x.Known }}
}

// etcd is what etcd gets of the Service.
func (h *hopStep) etcd() exchange.Writes {
	return exchange.Writes{Migration: h.Migration, Entry: &h.progress.Entry, To: h.to, Now: h.Now}
}

// byEtcd reports whether a Service, as just read, moves by strategy Etcd.
func (h *hopStep) byEtcd(svc *corev1.Service) bool {
	if h.progress.IsInTransit(svc, h.Domain) || h.Store == nil {
		return false
	}
	strategy, _, _ := h.Strategies.Choose(h.progress.AsOwned(svc))
	return strategy == v1alpha1.StrategyOfEtcd
}

// exchange moves a Service in etcd. First the reservation of the target becomes the Service's own
// IPAddress. Then, in one transaction, the Service gets its ClusterIP, and its former IPAddress
// becomes a reservation. Both name the Service all the time, and the one of its ClusterIP has the
// labels of an allocator before it is at it, so that the controller that repairs IPAddresses finds
// nothing amiss (syncService and syncIPAddress in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator/controller/repairip.go).
func (a *attempt) exchange(ctx context.Context) error {
	if a.Store == nil {
		return errNoStore
	}
	_, dest := a.ends()
	p := a.progress
	if err := a.noteOriginal(); err != nil {
		return err
	}
	trade, kept := a.etcd().Trade(a.svc)
	trade.Known, p.given = p.given, nil
	if trade.Known == nil {
		x := a.etcd().Give(a.svc)
		if err := a.Store.Exchange(ctx, x)[0]; err != nil {
			delete(p.Reserved, dest) // the next attempt looks whether it is still there
			return errors.Join(err, a.giveWay(ctx, err))
		}
		trade.Known = x.Known
	}
	err := a.Store.Exchange(ctx, trade)[0]
	delete(p.Reserved, dest)
	if err != nil {
		return errors.Join(err, a.giveWay(ctx, err))
	}
	p.recordHold(kept)
	a.reserved = true
	return nil
}

// giveWay takes a target off that another Service has been given: it leads nowhere else for a
// moment longer than it must. The next attempt goes to another address.
func (a *attempt) giveWay(ctx context.Context, err error) error {
	var taken *bridge.TakenError
	_, dest := a.ends()
	if !errors.As(err, &taken) || taken.Address != dest || a.to == engine.Backward || !a.progress.KeepsItself() {
		return nil
	}
	want := a.svc.DeepCopy()
	ownaddress.Remove(want, dest)
	if err := ownaddress.Write(ctx, a.Client, a.svc, want); err != nil {
		return err
	}
	return engine.NotYet("service %s goes to another address", a.progress.Key())
}
