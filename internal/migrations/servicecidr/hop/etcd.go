package hop

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// Give makes reserved targets the Services' own, some moments before they are at them: API servers
// have seen that by then, and need not repair it. Services that have changed meanwhile are left to
// their own steps.
func (s *Steps) Give(name string, all []*services.Entry, to engine.Direction) engine.Step {
	var changes []engine.Change
	role := engine.RoleOwn // of Services that agents call alone
	for _, e := range all {
		if !services.IsOwn(e.Service) {
			role = engine.RoleWrite
		}
		_, dest := e.Ends(to)
		changes = append(changes, engine.Change{Verb: "put", Object: "etcd: IPAddress " + dest.String()})
	}
	return &engine.Observed[struct{}]{
		Name: "give/" + name, About: "Give the Services of " + name + " the IPAddresses of their other addresses", As: role,
		Look: func(context.Context) (engine.State, struct{}, error) { return engine.Pending, struct{}{}, nil },
		Write: func(ctx context.Context, _ struct{}) error {
			var eg errgroup.Group
			eg.SetLimit(checksAtOnce)
			for _, e := range all {
				eg.Go(func() error {
					s.give(ctx, s.Tracker.Of(e), to)
					return nil
				})
			}
			return eg.Wait()
		},
		Proof:   noProof,
		Changes: engine.Shows(changes...),
	}
}

// give leaves errors to the step that moves the Service, which does the same first.
func (s *Steps) give(ctx context.Context, p *Progress, to engine.Direction) {
	if s.Store == nil || p.service == nil {
		return
	}
	h := &hopStep{Steps: s, progress: p, to: to}
	src, dest := h.ends()
	if !services.IsAt(p.service, src) {
		return
	}
	err := s.Store.Exchange(ctx, stored.Exchange{Service: p.service, Addresses: map[string]func(*networkingv1.IPAddress) error{
		dest.String(): func(ip *networkingv1.IPAddress) error { return h.give(ip, dest) },
	}})
	p.given = err == nil
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
	give := func(ip *networkingv1.IPAddress) error { return a.give(ip, dest) }
	given := p.given
	p.given = false
	if !given {
		err := a.Store.Exchange(ctx, stored.Exchange{Service: a.svc, Addresses: map[string]func(*networkingv1.IPAddress) error{dest.String(): give}})
		if err != nil {
			delete(p.Reserved, dest) // the next attempt looks whether it is still there
			return errors.Join(err, a.giveWay(ctx, err))
		}
	}
	err := a.Store.Exchange(ctx, stored.Exchange{
		Service: a.svc,
		Change:  a.arrive,
		Addresses: map[string]func(*networkingv1.IPAddress) error{
			dest.String(): give,
			src.String(): func(ip *networkingv1.IPAddress) error {
				if !owns(a.svc, ip) {
					return &bridge.TakenError{Address: src, By: bridge.ParentOf(ip)}
				}
				kept.Take(ip)
				return nil
			},
		},
	})
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
