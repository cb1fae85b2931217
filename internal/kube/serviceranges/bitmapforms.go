package serviceranges

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// labelProxy keeps kube-proxies from a Service (LabelServiceProxyName in k8s.io/kubernetes
	// pkg/proxy/apis).
	labelProxy = "service.kubernetes.io/service-proxy-name"
	proxyName  = "replumb.dev"
	// nowhere never resolves (RFC 6761).
	nowhere = "reserved.invalid"
	// allocator is ControllerName in k8s.io/kubernetes pkg/registry/core/service/ipallocator.
	allocator = "ipallocator.k8s.io"
)

// discardOnly holds no address of a Service, since packets to it are dropped (RFC 6666).
var discardOnly = netip.MustParsePrefix("100::/64") //nolint:gochecknoglobals // a constant

func holdName(a netip.Addr) string {
	return "hold-" + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// isHold trusts the label, since only replumb makes Services in its namespace.
func isHold(svc *corev1.Service) bool {
	return svc.Namespace == v1alpha1.SystemNamespace && svc.Labels[v1alpha1.LabelRole] == v1alpha1.RoleHold
}

// Stranded are the Services, as namespace/name, that reserve addresses beside ServiceCIDRs.
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

// reservable accepts only IPAddresses that replumb reserves for a Service.
func reservable(o client.Object, verb string) (*networkingv1.IPAddress, netip.Addr, error) {
	ip, is := o.(*networkingv1.IPAddress)
	if !is {
		return nil, netip.Addr{}, &OneRangeError{Verb: verb, Name: o.GetName()}
	}
	a, err := netip.ParseAddr(ip.Name)
	p := ip.Spec.ParentRef
	if err != nil || p == nil || p.Resource != "services" || ip.Labels[v1alpha1.LabelRole] != v1alpha1.RoleHold {
		return nil, a, apierrors.NewBadRequest(
			fmt.Sprintf("ipaddress %s: this cluster has none, and only a reserved one can be written", ip.Name),
		)
	}
	return ip, a, nil
}

// standIn is the Service that stands for a reserved address. kube-proxies ignore it.
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

// withoutClusterIP changes a Service for an address that is out of the API server's range.
func withoutClusterIP(svc *corev1.Service) *corev1.Service {
	svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: nowhere, Ports: svc.Spec.Ports}
	return svc
}

func reservedBy(svc *corev1.Service) *networkingv1.IPAddress {
	if svc == nil {
		return nil
	}
	notes, marks := maps.Clone(svc.Annotations), maps.Clone(svc.Labels)
	namespace, name, _ := strings.Cut(notes[v1alpha1.AnnotationHeldFor], "/")
	ip := newIPAddress(svc, notes[v1alpha1.AnnotationHeld], namespace, name)
	delete(marks, labelProxy)
	delete(notes, v1alpha1.AnnotationHeld)
	delete(notes, v1alpha1.AnnotationHeldFor)
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		notes[v1alpha1.AnnotationNoted] = "true"
	}
	ip.Labels, ip.Annotations = marks, notes
	return ip
}

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
	ip := newIPAddress(svc, a.String(), svc.Namespace, svc.Name)
	ip.Labels = givenLabels(family)
	return ip
}

func newIPAddress(svc *corev1.Service, address, namespace, name string) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name: address, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
			CreationTimestamp: svc.CreationTimestamp, DeletionTimestamp: svc.DeletionTimestamp,
		},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: namespace, Name: name},
		},
	}
}

func givenLabels(family string) map[string]string {
	return map[string]string{networkingv1.LabelIPAddressFamily: family, networkingv1.LabelManagedBy: allocator}
}

// allocated reports whether a Service already has the refused address. Errors of the allocator
// reach clients only as text (interfaces.go in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator, Restore in pkg/registry/core/service/allocator/bitmap.go).
func allocated(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "provided IP is already allocated")
}

// outOfRange is also true of an address of a family that the API server has no range of.
func outOfRange(err error) bool {
	return apierrors.IsInvalid(err) && (validRange.MatchString(err.Error()) || strings.Contains(err.Error(), notConfigured))
}

// otherFlag reports whether an API server with another range was the last to write the bitmap. It
// passes once all have the same flag.
func otherFlag(err error) bool {
	return err != nil &&
		(strings.Contains(err.Error(), "does not match the current range") || strings.Contains(err.Error(), "cannot allocate resources of type"))
}

// validRange is the text of ErrNotInRange.
var validRange = regexp.MustCompile(`The range of valid IPs is ([0-9a-fA-F:.]+/[0-9]+)`)

// notConfigured is for a family without a range (initIPFamilyFields in k8s.io/kubernetes
// pkg/registry/core/service/storage/alloc.go).
const notConfigured = "not configured on this cluster"
