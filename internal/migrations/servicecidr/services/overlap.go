package services

import (
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// OverlapChoice is where the other address of a Service answers, until finish or rollback, and why
// there.
type OverlapChoice struct {
	Form v1alpha1.OverlapForm
	Why  string
}

// String is the form in words for people.
func (o OverlapChoice) String() string {
	switch o.Form {
	case v1alpha1.OverlapExternalIP:
		return "externalIPs"
	case v1alpha1.OverlapLoadBalancer:
		return "load balancer"
	}
	return "bridge"
}

// OverlapFacts are what the forms of overlap depend on, beside the Services.
type OverlapFacts struct {
	// Cilium says that Cilium does the work of kube-proxy.
	Cilium bool
	// Published names what copies the external addresses of a Service to where others read them.
	Published map[types.NamespacedName]string
	// Refused says by namespace why Services may not be edited that keep an address themselves.
	Refused map[string]error
}

// KeepsItself reports whether the Service answers at its other address without a bridge.
func (e *Entry) KeepsItself() bool {
	return e.Overlap.Form == v1alpha1.OverlapExternalIP || e.Overlap.Form == v1alpha1.OverlapLoadBalancer
}

// Exchanges reports whether the two addresses change places in etcd, without a bridge.
func (e *Entry) Exchanges() bool {
	return e.KeepsItself() && (!e.Hops() || e.Overlap.Form == v1alpha1.OverlapLoadBalancer)
}

// Beside is the address, of both, that a Service is not at; invalid on the way or elsewhere.
func (e *Entry) Beside(svc *corev1.Service) netip.Addr {
	switch {
	case IsAt(svc, e.Old):
		return e.New
	case IsAt(svc, e.New):
		return e.Old
	}
	return netip.Addr{}
}

// seenForm is the form in which a Service keeps a reserved address itself; empty, if it does not.
// Only replumb reserves addresses: what an owner writes is not believed.
func (e *Entry) seenForm() v1alpha1.OverlapForm {
	for a, r := range e.Reserved {
		if form, there := ownaddress.FormOf(e.Service, a); there && form == r.Form {
			return form
		}
	}
	return ""
}

// recordedForm is that of a reservation: what an owner took off is put back in the same form. In a
// hop it is that of the spec with which the Service arrives.
func (e *Entry) recordedForm() v1alpha1.OverlapForm {
	for _, r := range e.Reserved {
		if r.Form != "" {
			return r.Form
		}
	}
	memo, arrives := e.RecordedMemo(), corev1.ServiceSpec{}
	if memo.Original == "" || json.Unmarshal([]byte(memo.Original), &arrives) != nil {
		return ""
	}
	for _, a := range []netip.Addr{memo.Old, memo.Target} {
		if slices.Contains(arrives.ExternalIPs, a.String()) {
			return v1alpha1.OverlapExternalIP
		}
	}
	return ""
}

// ChooseOverlaps decides for each Service that moves where its other address answers.
func (s *Inventory) ChooseOverlaps(in OverlapFacts) {
	for _, e := range s.All() {
		e.Overlap = s.overlapOf(e, in)
	}
}

func (s *Inventory) overlapOf(e *Entry, in OverlapFacts) OverlapChoice {
	bridged := func(why string) OverlapChoice { return OverlapChoice{v1alpha1.OverlapBridge, why} }
	wish := s.Spec.Overlap
	switch {
	case e.recordedForm() != "":
		return OverlapChoice{Form: e.recordedForm(), Why: "it has begun so"}
	case e.Bridge != nil && (e.Away() || !e.Hops()):
		return bridged("it has one")
	case wish == v1alpha1.OverlapBridge:
		return bridged("spec.serviceCIDR.overlap is Bridge")
	}
	choice, auto := wanted(wish, in.Cilium), wish == v1alpha1.OverlapAuto || wish == ""
	if cannot := cannotKeep(e, choice.Form, in.Cilium); cannot != "" {
		return bridged(cannot)
	}
	if err := in.Refused[e.Service.Namespace]; err != nil {
		return bridged("an edit of it with " + string(choice.Form) + " is refused: " + err.Error())
	}
	if read := readBy(e.AsOwned(e.Service), in); auto && read != "" {
		return bridged(read)
	}
	return choice
}

// wanted is the form that is asked for, or the one that the data plane serves.
func wanted(wish v1alpha1.OverlapForm, cilium bool) OverlapChoice {
	switch {
	case wish != v1alpha1.OverlapAuto && wish != "":
		return OverlapChoice{wish, "spec.serviceCIDR.overlap is " + string(wish)}
	case cilium:
		return OverlapChoice{v1alpha1.OverlapLoadBalancer, "Cilium serves addresses of load balancers"}
	}
	return OverlapChoice{v1alpha1.OverlapExternalIP, "kube-proxy serves externalIPs"}
}

// cannotKeep says why a Service cannot keep its other address in a form; empty, if it can.
//
// With externalTrafficPolicy Cluster, kube-proxy masquerades what pods send to an externalIP (the
// chain KUBE-EXT in k8s.io/kubernetes pkg/proxy/iptables/proxier.go), so NetworkPolicies that know
// clients by their pods would refuse it.
//
// Cilium leaves externalIPs alone that pods send to (sock4_skip_xlate in bpf/bpf_sock.c of
// github.com/cilium/cilium).
func cannotKeep(e *Entry, form v1alpha1.OverlapForm, cilium bool) string {
	owned := e.AsOwned(e.Service)
	switch {
	case e.Hops() && form == v1alpha1.OverlapLoadBalancer:
		return "strategy hop knows externalIPs and bridges alone"
	case cilium && form == v1alpha1.OverlapExternalIP:
		return "Cilium does not lead pods to externalIPs"
	case owned.Spec.Type == corev1.ServiceTypeLoadBalancer && form == v1alpha1.OverlapLoadBalancer:
		return "the controller of its load balancer writes its status"
	case form == v1alpha1.OverlapExternalIP && owned.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyCluster:
		return "its externalTrafficPolicy is Cluster: what pods send to an externalIP would come from nodes"
	}
	return ""
}

// The annotations by which external-dns publishes Services of types that it is not bound to
// (source/service.go of sigs.k8s.io/external-dns).
const (
	externalDNSName     = "external-dns.alpha.kubernetes.io/hostname"
	externalDNSInternal = "external-dns.alpha.kubernetes.io/internal-hostname"
	// gatewayName is on Services of Gateways (GEP-1762 of sigs.k8s.io/gateway-api).
	gatewayName = "gateway.networking.k8s.io/gateway-name"
)

// readBy says who would take the other address of a Service for a public one; empty, if nobody is
// known to. external-dns publishes the externalIPs of a LoadBalancer in the place of its status
// (extractLoadBalancerTargets in source/service.go).
func readBy(svc *corev1.Service, in OverlapFacts) string {
	by, published := in.Published[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return "its type is LoadBalancer, whose addresses others publish"
	case published:
		return by + " publishes its addresses"
	case svc.Labels[gatewayName] != "":
		return "a Gateway publishes its addresses, by its label " + gatewayName
	case svc.Annotations[externalDNSName] != "" || svc.Annotations[externalDNSInternal] != "":
		return "external-dns publishes its addresses, by its annotation"
	}
	return ""
}

// AsOwned is a Service, as just read, as its owner knows it: also where its owner has changed what
// it says of itself, by what is reserved for it.
func (e *Entry) AsOwned(svc *corev1.Service) *corev1.Service {
	owned := AsOwned(svc)
	for a, r := range e.Reserved {
		form, there := ownaddress.FormOf(owned, a)
		if there && form == r.Form || r.Form == v1alpha1.OverlapLoadBalancer && ownaddress.Unanswered(owned) {
			owned = owned.DeepCopy()
			ownaddress.Remove(owned, a)
		}
	}
	return owned
}

// AsOwned is a Service as its owner knows it, without the address that it keeps for the migration.
// It goes by the Service's own annotations: who lies there is treated accordingly, and nobody else.
func AsOwned(svc *corev1.Service) *corev1.Service {
	var kept []netip.Addr
	for _, key := range []string{v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP} {
		a, err := netip.ParseAddr(svc.Annotations[key])
		if err != nil {
			continue
		}
		if _, there := ownaddress.FormOf(svc, a); there || ownaddress.Unanswered(svc) {
			kept = append(kept, a)
		}
	}
	if len(kept) == 0 {
		return svc
	}
	owned := svc.DeepCopy()
	for _, a := range kept {
		ownaddress.Remove(owned, a)
	}
	return owned
}
