package hop

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/stored"
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
		func(h *hopStep, dest netip.Addr) engine.Change {
			return engine.Change{Verb: "put", Object: "etcd: IPAddress " + dest.String(), Body: h.hold(dest).Build()}
		},
		s.reservation)
}

// Give makes reserved targets the Services' own, some moments before they are at them: API servers
// have seen that by then, and need not repair it. Services that have changed meanwhile are left to
// their own steps.
func (s *Steps) Give(name string, all []*services.Entry, to engine.Direction) engine.Step {
	return s.together("give/"+name, "Give the Services of "+name+" the IPAddresses of their other addresses", all, to,
		func(_ *hopStep, dest netip.Addr) engine.Change {
			return engine.Change{Verb: "put", Object: "etcd: IPAddress " + dest.String()}
		},
		s.gift)
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
	shown func(*hopStep, netip.Addr) engine.Change, prepare func(*hopStep) *prepared,
) engine.Step {
	var steps []*hopStep
	var changes []engine.Change
	role := engine.RoleOwn // of Services that agents call alone
	for _, e := range all {
		if !services.IsOwn(e.Service) {
			role = engine.RoleWrite
		}
		h := &hopStep{Steps: s, progress: s.Tracker.Of(e), to: to}
		_, dest := h.ends()
		steps, changes = append(steps, h), append(changes, shown(h, dest))
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

// reservation is nil for a target that is reserved already. One that is there is adopted if it is
// the migration's own.
func (s *Steps) reservation(h *hopStep) *prepared {
	p := h.progress
	if _, reserved := p.Reserved[p.New]; reserved || !cidr.Contains(s.Within, p.New) ||
		!services.IsAt(p.Service, p.Old) || h.mayNotMove(p, p.Service) != "" || p.noteOwned(p.Service) != nil {
		return nil
	}
	hold := h.hold(p.New)
	return &prepared{
		Exchange: stored.Exchange{
			Service: p.Service,
			Addresses: map[string]func(*networkingv1.IPAddress) error{p.New.String(): func(ip *networkingv1.IPAddress) error {
				if ip.CreationTimestamp.IsZero() { // there is none
					hold.Take(ip)
					ip.CreationTimestamp = metav1.NewTime(h.Now().Truncate(time.Second))
				} else if !hold.Owns(ip) {
					return &bridge.TakenError{Address: p.New, By: bridge.ParentOf(ip)}
				}
				hold.UID = ip.UID
				return nil
			}},
			Make: &stored.Making{Manager: v1alpha1.FieldManager, Like: p.Service.Spec.ClusterIP},
		},
		made: func() { p.recordHold(hold) },
	}
}

func (s *Steps) gift(h *hopStep) *prepared {
	p := h.progress
	if src, _ := h.ends(); p.service == nil || !services.IsAt(p.service, src) {
		return nil
	}
	x := h.giving(p.service)
	return &prepared{Exchange: x, made: func() { p.given = x.Known }}
}

// giving makes the target the Service's own, and looks at all that the exchange is about.
func (h *hopStep) giving(svc *corev1.Service) stored.Exchange {
	src, dest := h.ends()
	return stored.Exchange{
		Service: svc,
		Addresses: map[string]func(*networkingv1.IPAddress) error{
			dest.String(): func(ip *networkingv1.IPAddress) error { return h.give(ip, dest) },
			src.String():  nil,
		},
		Known: &stored.Known{},
	}
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
	src, dest := a.ends()
	p := a.progress
	if err := a.noteOriginal(); err != nil {
		return err
	}
	kept := a.keptAfter(src)
	given := p.given
	p.given = nil
	if given == nil {
		x := a.giving(a.svc)
		if err := a.Store.Exchange(ctx, x)[0]; err != nil {
			delete(p.Reserved, dest) // the next attempt looks whether it is still there
			return errors.Join(err, a.giveWay(ctx, err))
		}
		given = x.Known
	}
	err := a.Store.Exchange(ctx, stored.Exchange{
		Service: a.svc,
		Change:  a.arrive,
		Addresses: map[string]func(*networkingv1.IPAddress) error{
			dest.String(): func(ip *networkingv1.IPAddress) error { return a.give(ip, dest) },
			src.String(): func(ip *networkingv1.IPAddress) error {
				if !owns(a.svc, ip) {
					return &bridge.TakenError{Address: src, By: bridge.ParentOf(ip)}
				}
				kept.Take(ip)
				return nil
			},
		},
		Known: given,
	})[0]
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

// keptAfter is what reserves the address that is left, and says what there was and when.
func (a *attempt) keptAfter(src netip.Addr) *bridge.Hold {
	kept := a.hold(src)
	kept.UID, kept.Old, kept.New, kept.LeftAt = "", a.progress.Old, a.progress.New, a.Now()
	return kept
}

// arrive changes the Service, as it is stored.
func (a *attempt) arrive(svc *corev1.Service) {
	src, dest := a.ends()
	ownaddress.Exchange(svc, src, dest)
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	notes := svc.Annotations
	if a.to == engine.Backward && notes[v1alpha1.AnnotationMovedAt] != "" {
		notes[v1alpha1.AnnotationAwaySince] = notes[v1alpha1.AnnotationMovedAt] // pods started since then may carry what is left now
	}
	for key, text := range a.notesOfArrival() {
		notes[key] = text
	}
}

func (a *attempt) notesOfArrival() map[string]string {
	return map[string]string{
		v1alpha1.LabelMigration:     a.Migration,
		v1alpha1.AnnotationOldIP:    a.progress.Old.String(),
		v1alpha1.AnnotationTargetIP: a.progress.New.String(),
		v1alpha1.AnnotationMovedAt:  a.Now().UTC().Format(time.RFC3339Nano),
	}
}

// clocksDiffer is how far an API server's clock may be ahead of the own one. An IPAddress whose
// Service is elsewhere is left alone for five seconds after its creation.
const clocksDiffer = 5 * time.Second

// give makes a reserved address the Service's own, as API servers make IPAddresses
// (createIPAddress in k8s.io/kubernetes pkg/registry/core/service/ipallocator/ipallocator.go).
func (h *hopStep) give(ip *networkingv1.IPAddress, dest netip.Addr) error {
	if owns(h.progress.Service, ip) {
		return nil
	}
	if !h.hold(dest).Owns(ip) {
		return &bridge.TakenError{Address: dest, By: bridge.ParentOf(ip)}
	}
	ip.CreationTimestamp = metav1.NewTime(h.Now().Add(clocksDiffer).Truncate(time.Second))
	family := corev1.IPv4Protocol
	if dest.Is6() {
		family = corev1.IPv6Protocol
	}
	ip.Annotations = nil
	ip.Labels = map[string]string{
		networkingv1.LabelIPAddressFamily: string(family),
		networkingv1.LabelManagedBy:       services.Allocator,
	}
	ip.Spec = networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
		Resource: "services", Namespace: h.progress.Key().Namespace, Name: h.progress.Key().Name,
	}}
	return nil
}

func owns(svc *corev1.Service, ip *networkingv1.IPAddress) bool {
	p := ip.Spec.ParentRef
	return ip.Labels[v1alpha1.LabelRole] == "" && p != nil && p.Group == "" && p.Resource == "services" &&
		p.Namespace == svc.Namespace && p.Name == svc.Name
}

func (h *hopStep) changesOfExchange() []engine.Change {
	svc := h.progress.Service.DeepCopy()
	src, dest := h.ends()
	own := h.hold(dest).Build()
	_ = h.give(own, dest) // it is the migration's own
	own.CreationTimestamp = metav1.Time{}
	kept := h.hold(src)
	kept.Old, kept.New = h.progress.Old, h.progress.New
	if h.progress.KeepsItself() { // the step before this one has added it
		ownaddress.Add(svc, dest, h.progress.Overlap.Form)
	}
	ownaddress.Exchange(svc, src, dest)
	spec := map[string]any{"clusterIP": svc.Spec.ClusterIP, "clusterIPs": svc.Spec.ClusterIPs}
	body := map[string]any{"spec": spec}
	switch form, there := ownaddress.FormOf(svc, src); {
	case !there:
	case form == v1alpha1.OverlapExternalIP:
		spec["externalIPs"] = svc.Spec.ExternalIPs
	default:
		body["status"] = map[string]any{"loadBalancer": svc.Status.LoadBalancer}
	}
	changes := []engine.Change{
		{Verb: "put", Object: "etcd: IPAddress " + dest.String(), Body: own},
		{Verb: "put", Object: "etcd: Service " + h.progress.Key().String(), Body: body},
		{Verb: "put", Object: "etcd: IPAddress " + src.String(), Body: kept.Build()},
	}
	if h.progress.KeepsItself() {
		const later = " (if its other address is not its own any more by then)"
		return append(changes, engine.Change{Verb: "create", Object: "IPAddress" + later},
			engine.Change{Verb: "patch", Object: "Service " + h.progress.Key().String() + later})
	}
	memo := engine.Change{Verb: "create", Object: "IPAddress " + bridge.MemoAddress(svc.UID).String() + " (what is noted of the Service)"}
	return append([]engine.Change{memo}, changes...)
}
