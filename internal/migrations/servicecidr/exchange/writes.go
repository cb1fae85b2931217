package exchange

import (
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
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// Writes are what etcd gets of one Service on its way.
type Writes struct {
	Migration string
	Entry     *services.Entry
	To        engine.Direction
	Now       func() time.Time
}

func (w Writes) ends() (src, dest netip.Addr) { return w.Entry.Ends(w.To) }

func (w Writes) hold(a netip.Addr) *bridge.Hold { return w.Entry.Reservation(w.Migration, a) }

// Reserve reserves the target. One that is reserved is adopted if it is the migration's own. The
// hold gets its UID as it is written.
func (w Writes) Reserve() (stored.Exchange, *bridge.Hold) {
	target := w.Entry.New
	hold := w.hold(target)
	return stored.Exchange{
		Service: w.Entry.Service,
		Addresses: map[string]func(*networkingv1.IPAddress) error{target.String(): func(ip *networkingv1.IPAddress) error {
			if ip.CreationTimestamp.IsZero() { // there is none
				hold.Take(ip)
				ip.CreationTimestamp = metav1.NewTime(w.Now().Truncate(time.Second))
			} else if !hold.Owns(ip) {
				return &bridge.TakenError{Address: target, By: bridge.ParentOf(ip)}
			}
			hold.UID = ip.UID
			return nil
		}},
		Make: &stored.Making{Manager: v1alpha1.FieldManager, Like: w.Entry.Service.Spec.ClusterIP},
	}, hold
}

// Give makes the target the Service's own, and looks at all that Trade is about.
func (w Writes) Give(svc *corev1.Service) stored.Exchange {
	src, dest := w.ends()
	return stored.Exchange{
		Service: svc,
		Addresses: map[string]func(*networkingv1.IPAddress) error{
			dest.String(): func(ip *networkingv1.IPAddress) error { return w.give(ip, dest) },
			src.String():  nil,
		},
		Known: &stored.Known{},
	}
}

// Trade gives the Service its ClusterIP, and has its former IPAddress become the reservation that
// is returned.
func (w Writes) Trade(svc *corev1.Service) (stored.Exchange, *bridge.Hold) {
	src, dest := w.ends()
	kept := w.hold(src)
	kept.UID, kept.Old, kept.New, kept.LeftAt = "", w.Entry.Old, w.Entry.New, w.Now()
	return stored.Exchange{
		Service: svc,
		Change:  w.arrive,
		Addresses: map[string]func(*networkingv1.IPAddress) error{
			dest.String(): func(ip *networkingv1.IPAddress) error { return w.give(ip, dest) },
			src.String(): func(ip *networkingv1.IPAddress) error {
				if !owns(svc, ip) {
					return &bridge.TakenError{Address: src, By: bridge.ParentOf(ip)}
				}
				kept.Take(ip)
				return nil
			},
		},
	}, kept
}

// arrive changes the Service, as it is stored.
func (w Writes) arrive(svc *corev1.Service) {
	src, dest := w.ends()
	ownaddress.Exchange(svc, src, dest)
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	notes := svc.Annotations
	if w.To == engine.Backward && notes[v1alpha1.AnnotationMovedAt] != "" {
		notes[v1alpha1.AnnotationAwaySince] = notes[v1alpha1.AnnotationMovedAt] // pods started since then may carry what is left now
	}
	notes[v1alpha1.LabelMigration] = w.Migration
	notes[v1alpha1.AnnotationOldIP] = w.Entry.Old.String()
	notes[v1alpha1.AnnotationTargetIP] = w.Entry.New.String()
	notes[v1alpha1.AnnotationMovedAt] = w.Now().UTC().Format(time.RFC3339Nano)
}

// clocksDiffer is how far an API server's clock may be ahead of the own one. An IPAddress whose
// Service is elsewhere is left alone for five seconds after its creation.
const clocksDiffer = 5 * time.Second

// give makes a reserved address the Service's own, as API servers make IPAddresses
// (createIPAddress in k8s.io/kubernetes pkg/registry/core/service/ipallocator/ipallocator.go).
func (w Writes) give(ip *networkingv1.IPAddress, dest netip.Addr) error {
	if owns(w.Entry.Service, ip) {
		return nil
	}
	if !w.hold(dest).Owns(ip) {
		return &bridge.TakenError{Address: dest, By: bridge.ParentOf(ip)}
	}
	ip.CreationTimestamp = metav1.NewTime(w.Now().Add(clocksDiffer).Truncate(time.Second))
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
		Resource: "services", Namespace: w.Entry.Key().Namespace, Name: w.Entry.Key().Name,
	}}
	return nil
}

func owns(svc *corev1.Service, ip *networkingv1.IPAddress) bool {
	p := ip.Spec.ParentRef
	return ip.Labels[v1alpha1.LabelRole] == "" && p != nil && p.Group == "" && p.Resource == "services" &&
		p.Namespace == svc.Namespace && p.Name == svc.Name
}

// Reservation shows what Reserve, or the API in its place, writes.
func (w Writes) Reservation() engine.Change {
	_, dest := w.ends()
	return engine.Change{Verb: "put", Object: "etcd: IPAddress " + dest.String(), Body: w.hold(dest).Build()}
}

// Gift shows what Give writes.
func (w Writes) Gift() engine.Change {
	_, dest := w.ends()
	return engine.Change{Verb: "put", Object: "etcd: IPAddress " + dest.String()}
}

// Changes shows what a Service's own step writes.
func (w Writes) Changes() []engine.Change {
	svc := w.Entry.Service.DeepCopy()
	src, dest := w.ends()
	own := w.hold(dest).Build()
	_ = w.give(own, dest) // it is the migration's own
	own.CreationTimestamp = metav1.Time{}
	kept := w.hold(src)
	kept.Old, kept.New = w.Entry.Old, w.Entry.New
	if w.Entry.KeepsItself() { // the step before this one has added it
		ownaddress.Add(svc, dest, w.Entry.Overlap.Form)
	}
	ownaddress.Exchange(svc, src, dest)
	changes := []engine.Change{
		{Verb: "put", Object: "etcd: IPAddress " + dest.String(), Body: own},
		{Verb: "put", Object: "etcd: Service " + w.Entry.Key().String(), Body: bodyOf(svc, src)},
		{Verb: "put", Object: "etcd: IPAddress " + src.String(), Body: kept.Build()},
	}
	if w.Entry.KeepsItself() {
		const later = " (if its other address is not its own any more by then)"
		return append(changes, engine.Change{Verb: "create", Object: "IPAddress" + later},
			engine.Change{Verb: "patch", Object: "Service " + w.Entry.Key().String() + later})
	}
	memo := engine.Change{Verb: "create", Object: "IPAddress " + bridge.MemoAddress(svc.UID).String() + " (what is noted of the Service)"}
	return append([]engine.Change{memo}, changes...)
}

// bodyOf shows of a Service that has traded its addresses what is new to it.
func bodyOf(svc *corev1.Service, src netip.Addr) map[string]any {
	spec := map[string]any{"clusterIP": svc.Spec.ClusterIP, "clusterIPs": svc.Spec.ClusterIPs}
	body := map[string]any{"spec": spec}
	switch form, there := ownaddress.FormOf(svc, src); {
	case !there:
	case form == v1alpha1.OverlapExternalIP:
		spec["externalIPs"] = svc.Spec.ExternalIPs
	default:
		body["status"] = map[string]any{"loadBalancer": svc.Status.LoadBalancer}
	}
	return body
}
