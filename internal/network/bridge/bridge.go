// Package bridge keeps addresses of a Service answering while it moves: bridge Services in two
// forms, holds on addresses without an owner, and the barrier that proves that every node knows
// them.
package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Bridge describes the bridge of one Service.
type Bridge struct {
	Migration string
	// Service it stands in for. Its selector, ports and affinity are the bridge's too.
	Service *corev1.Service
	// Old and New are the addresses that the Service leaves and goes to.
	Old, New netip.Addr
	// Kept is the other family's address of a dual-stack Service; invalid without one. The bridge
	// answers there too while the Service has no address.
	Kept netip.Addr
	// Answers says at which of them the bridge answers.
	Answers Answers
	// Within are the ranges that both must be in: a foreign address would be taken over
	// (CVE-2020-8554). Empty allows none.
	Within []netip.Prefix
	// Reserved has the bridge known by its name alone, since an address is reserved for it.
	Reserved bool
	// Own is the bridge's own ClusterIP. Invalid: the API server chooses.
	Own  netip.Addr
	Form v1alpha1.BridgeForm
	// Labels are those that policies ask for, beside replumb's own.
	Labels map[string]string
}

// Answers are the addresses, of two, at which a bridge answers.
//
// At an address with two owners each sync of kube-proxy takes the rules of either: it walks a map
// (svcPortMap in syncProxyRules of k8s.io/kubernetes pkg/proxy/iptables/proxier.go and
// pkg/proxy/nftables/proxier.go), with other session affinity and maybe old endpoints. So that
// lasts only as long as a hop needs.
type Answers int

const (
	// Both is for a hop: the Service leaves one address, and every node has to know the other
	// before clients do.
	Both Answers = iota
	// OldOnly is for a Service that has arrived at its new address.
	OldOnly
	// NewOnly is for a Service that has come back.
	NewOnly
	// Neither is for a Service that answers at both by itself, while cluster DNS may still give out
	// the bridge's own address.
	Neither
)

// Name is the same in every run, and another one for a later Service of that name.
func Name(service string, uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	suffix := "-bridge-" + hex.EncodeToString(sum[:])[:5]
	if limit := 63 - len(suffix); len(service) > limit {
		service = service[:limit]
	}
	return service + suffix
}

func (b *Bridge) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Service.Namespace, Name: Name(b.Service.Name, b.Service.UID)}
}

func (b *Bridge) addresses() []netip.Addr {
	switch b.Answers {
	case OldOnly:
		return []netip.Addr{b.Old}
	case NewOnly:
		return []netip.Addr{b.New}
	case Neither:
		return nil
	}
	all := []netip.Addr{b.Old, b.New}
	if b.Kept.IsValid() {
		all = append(all, b.Kept)
	}
	return all
}

// families has that of its own address first, as the API server does.
func (b *Bridge) families() []corev1.IPFamily {
	if !b.Kept.IsValid() {
		return nil
	}
	return []corev1.IPFamily{familyOf(b.New), familyOf(b.Kept)}
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func steering() []string {
	return []string{corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints}
}

// Build makes the bridge as it should be.
//
// externalTrafficPolicy is Local because Cluster would have kube-proxy masquerade, and
// NetworkPolicies for client pods stop matching. Pods still reach endpoints of all nodes:
// kube-proxy sends their traffic to an external address the way of the ClusterIP (the rules "pod
// traffic for ... external destinations" in k8s.io/kubernetes pkg/proxy/iptables/proxier.go).
func (b *Bridge) Build() *corev1.Service {
	key := b.Key()
	spec := &b.Service.Spec
	svc := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name,
			Labels:    with(b.Labels, map[string]string{v1alpha1.LabelMigration: b.Migration, v1alpha1.LabelRole: v1alpha1.RoleBridge}),
			Annotations: map[string]string{
				v1alpha1.AnnotationService:    b.Service.Name,
				v1alpha1.AnnotationServiceUID: string(b.Service.UID),
				v1alpha1.AnnotationOldIP:      b.Old.String(),
				v1alpha1.AnnotationTargetIP:   b.New.String(),
			},
		},
		Spec: corev1.ServiceSpec{
			Selector:                 spec.Selector,
			Ports:                    ports(spec.Ports),
			SessionAffinity:          spec.SessionAffinity,
			SessionAffinityConfig:    spec.SessionAffinityConfig,
			PublishNotReadyAddresses: spec.PublishNotReadyAddresses,
			TrafficDistribution:      spec.TrafficDistribution,
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicyLocal,
		},
	}
	for _, key := range steering() {
		if mode, set := b.Service.Annotations[key]; set {
			svc.Annotations[key] = mode
		}
	}
	if b.Own.IsValid() {
		svc.Spec.ClusterIP = b.Own.String()
	}
	if svc.Spec.IPFamilies = b.families(); len(svc.Spec.IPFamilies) > 1 {
		svc.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	if b.Form == v1alpha1.BridgeExternalIPs {
		svc.Spec.Type = corev1.ServiceTypeClusterIP
		svc.Spec.ExternalIPs = lists.Strings(b.addresses())
		if len(svc.Spec.ExternalIPs) == 0 { // API servers refuse it then
			svc.Spec.ExternalTrafficPolicy = ""
		}
		return svc
	}
	class, no := v1alpha1.LoadBalancerClass, false
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.LoadBalancerClass = &class
	svc.Spec.AllocateLoadBalancerNodePorts = &no
	for _, a := range b.addresses() {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, vip(a))
	}
	return svc
}

func vip(a netip.Addr) corev1.LoadBalancerIngress {
	mode := corev1.LoadBalancerIPModeVIP
	return corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode}
}

func ports(from []corev1.ServicePort) []corev1.ServicePort {
	to := make([]corev1.ServicePort, len(from))
	for i, p := range from {
		p.NodePort = 0
		to[i] = p
	}
	return to
}

// Made reports whether a Service is of a type that users' Services are not, and bridges are.
func Made(have *corev1.Service) bool {
	class := have.Spec.LoadBalancerClass
	return (class != nil && *class == v1alpha1.LoadBalancerClass) || len(have.Spec.ExternalIPs) > 0
}

// Named reports whether a Service says that it is the bridge of another.
func Named(have *corev1.Service, of types.UID) bool {
	return have.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge && have.Annotations[v1alpha1.AnnotationServiceUID] == string(of)
}

// Difference names how a bridge differs from want; nil if it does not. A relabelled one is known by
// its reserved address.
func Difference(have, want *corev1.Service, reserved bool) error {
	name := have.Namespace + "/" + have.Name
	if !Named(have, types.UID(want.Annotations[v1alpha1.AnnotationServiceUID])) {
		if !reserved || !Made(have) {
			return &ForeignError{Kind: "Service", Name: name}
		}
		return &DriftError{Name: name, Field: "labels"}
	}
	h, w := have.Spec.DeepCopy(), want.Spec.DeepCopy()
	for _, d := range []struct {
		field string
		equal bool
	}{
		{"deletionTimestamp", have.DeletionTimestamp.IsZero()},
		{"type", h.Type == w.Type},
		{"selector", equality.Semantic.DeepEqual(h.Selector, w.Selector)},
		{"ports", equality.Semantic.DeepEqual(ports(h.Ports), w.Ports)},
		{"sessionAffinity", h.SessionAffinity == w.SessionAffinity &&
			equality.Semantic.DeepEqual(h.SessionAffinityConfig, w.SessionAffinityConfig)},
		{"publishNotReadyAddresses", h.PublishNotReadyAddresses == w.PublishNotReadyAddresses},
		{"trafficDistribution", equality.Semantic.DeepEqual(h.TrafficDistribution, w.TrafficDistribution)},
		{"ipFamilies", bothFamilies(h) == bothFamilies(w)},
		{"externalTrafficPolicy", h.ExternalTrafficPolicy == w.ExternalTrafficPolicy},
		{"externalIPs", equality.Semantic.DeepEqual(h.ExternalIPs, w.ExternalIPs)},
		{"loadBalancerClass", equality.Semantic.DeepEqual(h.LoadBalancerClass, w.LoadBalancerClass)},
		{"status.loadBalancer.ingress", sameIngress(have.Status, want.Status)},
		{"annotations", sameNotes(have, want)},
		{"labels", labels.SelectorFromSet(want.Labels).Matches(labels.Set(have.Labels))},
	} {
		if !d.equal {
			return &DriftError{Name: name, Field: d.field}
		}
	}
	return nil
}

func bothFamilies(spec *corev1.ServiceSpec) bool { return len(spec.IPFamilies) > 1 }

func sameNotes(have, want *corev1.Service) bool {
	for _, key := range append(steering(), v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP) {
		if have.Annotations[key] != want.Annotations[key] {
			return false
		}
	}
	return true
}

func sameIngress(have, want corev1.ServiceStatus) bool {
	if len(have.LoadBalancer.Ingress) != len(want.LoadBalancer.Ingress) {
		return false
	}
	for i, w := range want.LoadBalancer.Ingress {
		h := have.LoadBalancer.Ingress[i]
		if h.IP != w.IP || h.IPMode == nil || *h.IPMode != *w.IPMode {
			return false
		}
	}
	return true
}

// DriftError says that a bridge is not (or no longer) what its Service needs.
type DriftError struct {
	Name  string
	Field string
}

func (e *DriftError) Error() string { return fmt.Sprintf("bridge %s differs in %s", e.Name, e.Field) }

// Advice says how to find out who writes it.
func (e *DriftError) Advice() string {
	return "something else changes the bridge. See who, and have it leave Services with the label " + v1alpha1.LabelRole + "=" +
		v1alpha1.RoleBridge + " alone: kubectl get service " + inNamespace(e.Name) + " -o yaml --show-managed-fields; then run the same command again"
}

// OutsideError says that a bridge was to answer at an address that is none of its migration's.
type OutsideError struct {
	Name    string
	Address netip.Addr
}

func (e *OutsideError) Error() string {
	return fmt.Sprintf("bridge %s must not answer at %s, which is in no range of the migration", e.Name, e.Address)
}

// Advice says where the address comes from.
func (*OutsideError) Advice() string {
	return "what is reserved for the bridge, or a range in spec.serviceCIDR, was changed by others: correct it (kubectl get ipaddresses -l " +
		v1alpha1.LabelRole + "=" + v1alpha1.RoleHold + " -o yaml shows what is reserved), and run the same command again"
}

// inNamespace are the arguments by which kubectl finds what is called NAMESPACE/NAME.
func inNamespace(key string) string {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		return key
	}
	return "-n " + namespace + " " + name
}

// inside returns an OutsideError for addresses outside the migration's ranges.
func (b *Bridge) inside() error {
	for _, a := range []netip.Addr{b.Old, b.New} {
		if !cidr.Contains(b.Within, a) {
			return &OutsideError{Name: b.Key().String(), Address: a}
		}
	}
	return nil
}

// ForeignError says that a name is taken by an object that is not replumb's.
type ForeignError struct {
	Kind string
	Name string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %s exists and does not belong to this migration", e.Kind, e.Name)
}

// Advice says what to do about the other object.
func (e *ForeignError) Advice() string {
	return "see whose it is, and remove or rename it if it is not needed: kubectl get " + strings.ToLower(e.Kind) + " " + inNamespace(e.Name) +
		" -o yaml; then run the same command again"
}

// FormOf tells the form of an existing bridge.
func FormOf(svc *corev1.Service) v1alpha1.BridgeForm {
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		return v1alpha1.BridgeLoadBalancer
	}
	return v1alpha1.BridgeExternalIPs
}
