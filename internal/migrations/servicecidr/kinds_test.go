//go:build apiserver

package servicecidr

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

func netipPrefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// slice makes the endpoints of a Service without selector.
func (f *fixture) slice(service string, addresses ...string) *discoveryv1.EndpointSlice {
	f.Helper()
	name, port, proto := "http", int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: service + "-own", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: addresses}},
	}
	f.must(server.Create(f.Context(), s))
	return s
}

func TestNodePortsAreKeptThereAndBack(t *testing.T) {
	f := setup(t)
	was := f.service("ports", at("10.96.3.7"), nodePort)
	if was.Spec.Ports[0].NodePort == 0 || was.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Fatalf("no node ports in %+v", was.Spec)
	}
	f.apply()
	is := f.get("ports")
	f.sameButAddress(was, is)
	if is.Spec.ClusterIP != "172.24.3.7" {
		t.Errorf("at %s", is.Spec.ClusterIP)
	}
	f.must(f.rollback())
	f.rolledBack(was)
}

// TestPinnedServicesKeepTheirAddresses: when the range around them goes, ranges that cover them
// stay, and their addresses stay theirs.
func TestPinnedServicesKeepTheirAddresses(t *testing.T) {
	f, was := office(t)
	pinned := f.service("fixed", at("172.31.9.24"), func(s *corev1.Service) {
		s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin}
	})
	f.apply()
	f.must(f.finish())
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16 172.31.3.8/30 172.31.9.16/28"; got != want {
		t.Errorf("ranges are %s, want %s", got, want)
	}
	for _, w := range []*corev1.Service{was[2], pinned} {
		if is := f.get(w.Name); is.ResourceVersion != w.ResourceVersion {
			t.Errorf("%s was written: %+v", w.Name, is)
		}
		if got, want := f.owner(w.Spec.ClusterIP), "services shop/"+w.Name; got != want {
			t.Errorf("%s belongs to %q", w.Spec.ClusterIP, got)
		}
	}
	f.nothingLeft()
}
