package services

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestJudge changes a Service that may move in each way after which it may not.
func TestJudge(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	now := metav1.Now()
	for name, tt := range map[string]struct {
		change func(*corev1.Service)
		place  Position
		kind   ReasonKind
	}{
		"nothing":       {func(*corev1.Service) {}, Waiting, ""},
		"node ports":    {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }, Waiting, ""},
		"pinned":        {func(s *corev1.Service) { s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: "pin"} }, Pinned, Kept},
		"asks for more": {func(s *corev1.Service) { s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: "fly"} }, Stays, Refused},
		"balanced":      {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }, Pinned, Kept},
		"dual-stack":    {func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::7") }, Waiting, ""},
		"external IPs":  {func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }, Stays, Refused},
		"local":         {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, Stays, Refused},
		"elsewhere":     {func(s *corev1.Service) { s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName} }, Stays, NotConcerned},
		"headless":      {func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }, Stays, NotConcerned},
		"ending":        {func(s *corev1.Service) { s.DeletionTimestamp = &now }, Stays, Ending},
	} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.3.7", ClusterIPs: []string{"10.96.3.7"},
		}}
		tt.change(svc)
		if place, reason := (Strategies{}).Evaluate(svc); place != tt.place || reason.Kind != tt.kind {
			t.Errorf("%s: %s, %+v", name, place, reason)
		}
	}
}

// TestCrossing: a name that only begins like that of the bridge leads elsewhere, and so does an
// address that is not the old one.
func TestCrossing(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid"}}
	svc.Annotations = map[string]string{v1alpha1.AnnotationOldIP: "10.96.3.7"}
	svc.Spec.Type = corev1.ServiceTypeExternalName
	host := BridgeKey(svc).Name + ".shop.svc."
	for name, want := range map[string]bool{host + "cluster.local": true, host + "example.com": false, "rds.example.com": false, "": false, "10.96.3.7": true, "10.96.3.8": false} {
		if svc.Spec.ExternalName = name; LeadsToBridge(svc, "cluster.local") != want {
			t.Errorf("%q: want %t", name, want)
		}
	}
}

// TestOnItsWay: what its owner can write too counts as a hop only between the notes that replumb
// makes before the first patch and after the second.
func TestOnItsWay(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "uid"}}
	svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, BridgeHost(svc, "cluster.local")
	old, target := netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("172.24.3.7")
	memo := func(heading netip.Addr) Reservation { return Reservation{Old: old, Target: target, Heading: heading} }
	noted := bridge.MemoAddress(svc.UID)
	for name, tt := range map[string]struct {
		reserved map[netip.Addr]Reservation
		want     bool
	}{
		"nothing":                     {nil, false},
		"bridged":                     {map[netip.Addr]Reservation{target: {}}, false},
		"leaves":                      {map[netip.Addr]Reservation{noted: memo(target)}, true},
		"leaves, the target reserved": {map[netip.Addr]Reservation{noted: memo(target), target: {}}, true},
		"moved":                       {map[netip.Addr]Reservation{noted: memo(target), old: {}}, false},
		"returns":                     {map[netip.Addr]Reservation{noted: memo(old), old: {}}, true},
		"back":                        {map[netip.Addr]Reservation{noted: memo(old), target: {}}, false},
		"is completed":                {map[netip.Addr]Reservation{noted: memo(target), old: {Heading: target}}, true},
		"is taken back":               {map[netip.Addr]Reservation{target: {Heading: old}}, true},
	} {
		e := &Entry{Service: svc, Reserved: tt.reserved}
		if e.IsInTransit(svc, "cluster.local") != tt.want {
			t.Errorf("%s: want %t", name, tt.want)
		}
	}
}
