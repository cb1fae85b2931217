package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// labelProxy keeps kube-proxies from a Service: theirs is another (LabelServiceProxyName in
	// k8s.io/kubernetes pkg/proxy/apis).
	labelProxy = "service.kubernetes.io/service-proxy-name"
	proxyName  = "replumb.dev"
	// nowhere is where the name of a Service leads that only notes an address (RFC 6761).
	nowhere = "reserved.invalid"
	// allocator is who manages the IPAddresses of Services (ControllerName in k8s.io/kubernetes
	// pkg/registry/core/service/ipallocator).
	allocator = "ipallocator.k8s.io"
)

// noOnes are addresses that no Service can be given: packets to them are discarded (RFC 6666).
var noOnes = netip.MustParsePrefix("100::/64") //nolint:gochecknoglobals // a constant

// holdName is that of the Service that stands for a reserved address.
func holdName(a netip.Addr) string {
	return "hold-" + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// isHold reports whether a Service stands for a reserved address. Only replumb makes Services in
// its namespace.
func isHold(svc *corev1.Service) bool {
	return svc.Namespace == v1alpha1.SystemNamespace && svc.Labels[v1alpha1.LabelRole] == v1alpha1.RoleHold
}

// Stranded are the Services, as namespace/name, that stand for reserved addresses although the
// cluster has ServiceCIDRs: it had none when they were made.
func Stranded(api RangeAPI, services []corev1.Service) []string {
	if api == Bitmap {
		return nil
	}
	var all []string
	for i := range services {
		if svc := &services[i]; isHold(svc) && svc.Annotations[v1alpha1.AnnotationHeld] != "" {
			all = append(all, svc.Namespace+"/"+svc.Name)
		}
	}
	return all
}

// reservable is the address of an IPAddress that can be reserved: for a Service, and by replumb.
func reservable(ip *networkingv1.IPAddress) (netip.Addr, error) {
	a, err := netip.ParseAddr(ip.Name)
	p := ip.Spec.ParentRef
	if err != nil || p == nil || p.Resource != "services" || ip.Labels[v1alpha1.LabelRole] != v1alpha1.RoleHold {
		return a, apierrors.NewBadRequest(
			fmt.Sprintf("ipaddress %s: this cluster has none, and only a reserved one can be written", ip.Name),
		)
	}
	return a, nil
}

// standIn is the Service that stands for a reserved address, and has it. No kube-proxy leads the
// address anywhere for it.
func standIn(ip *networkingv1.IPAddress, a netip.Addr) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: holdName(a),
			Labels: maps.Clone(ip.Labels), Annotations: maps.Clone(ip.Annotations),
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: a.String(), ClusterIPs: []string{a.String()}, Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}},
		},
	}
	svc.Labels[labelProxy] = proxyName
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[v1alpha1.AnnotationHeld] = a.String()
	svc.Annotations[v1alpha1.AnnotationHeldFor] = ip.Spec.ParentRef.Namespace + "/" + ip.Spec.ParentRef.Name
	return svc
}

// noted is that Service for an address that the API server does not give out.
func noted(svc *corev1.Service) *corev1.Service {
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: nowhere, Ports: svc.Spec.Ports}
	return svc
}

// reservedBy is the IPAddress that a Service stands for; nil for none.
func reservedBy(svc *corev1.Service) *networkingv1.IPAddress {
	if svc == nil {
		return nil
	}
	notes, marks := maps.Clone(svc.Annotations), maps.Clone(svc.Labels)
	namespace, name, _ := strings.Cut(notes[v1alpha1.AnnotationHeldFor], "/")
	ip := &networkingv1.IPAddress{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: identity(svc, notes[v1alpha1.AnnotationHeld]),
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name},
		},
	}
	delete(marks, labelProxy)
	delete(notes, v1alpha1.AnnotationHeld)
	delete(notes, v1alpha1.AnnotationHeldFor)
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		notes[v1alpha1.AnnotationNoted] = "true"
	}
	ip.Labels, ip.Annotations = marks, notes
	return ip
}

// identity is what an IPAddress has of the Service that it is made of.
func identity(svc *corev1.Service, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
		CreationTimestamp: svc.CreationTimestamp, DeletionTimestamp: svc.DeletionTimestamp,
	}
}

// addressesOf are the IPAddresses that a Service stands for or was given.
func addressesOf(svc *corev1.Service) []*networkingv1.IPAddress {
	if isHold(svc) {
		return []*networkingv1.IPAddress{reservedBy(svc)}
	}
	var all []*networkingv1.IPAddress
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, givenTo(svc, a))
		}
	}
	return all
}

// givenTo is the IPAddress that the allocator would have made for a Service (newIPAddress in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/ipallocator.go).
func givenTo(svc *corev1.Service, a netip.Addr) *networkingv1.IPAddress {
	family := "IPv4"
	if a.Is6() {
		family = "IPv6"
	}
	ip := &networkingv1.IPAddress{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: identity(svc, a.String()),
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	}
	ip.Labels = givenLabels(family)
	return ip
}

func givenLabels(family string) map[string]string {
	return map[string]string{networkingv1.LabelIPAddressFamily: family, networkingv1.LabelManagedBy: allocator}
}

// What the allocator says reaches clients only as text (interfaces.go in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator, and Restore in
// pkg/registry/core/service/allocator/bitmap.go).

// allocated reports whether an address was refused since a Service has it.
func allocated(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "provided IP is already allocated")
}

// outOfRange reports whether an address was refused since it is in none of the API server's ranges,
// or of a family that it has none of.
func outOfRange(err error) bool {
	return apierrors.IsInvalid(err) && (validRange.MatchString(err.Error()) || strings.Contains(err.Error(), notConfigured))
}

// otherFlag reports whether an address was refused since API servers of another range were the last
// to write the bitmap: it is settled when all have the same flag.
func otherFlag(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), "does not match the current range") || strings.Contains(err.Error(), "cannot allocate resources of type"))
}

// validRange is how an API server says what its range is.
var validRange = regexp.MustCompile(`The range of valid IPs is ([0-9a-fA-F:.]+/[0-9]+)`)

// notConfigured is how it says that it has no range of a family (initIPFamilyFields in
// k8s.io/kubernetes pkg/registry/core/service/storage/alloc.go).
const notConfigured = "not configured on this cluster"
