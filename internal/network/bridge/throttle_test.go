package bridge

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// routed is a Service with a port, and its old address.
func routed(name string) Routed {
	return Routed{
		Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-of-cart"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
		},
		Old: netip.MustParseAddr("10.96.3.7"),
	}
}

// TestThrottle: a Service may leave soon after the change that begins an interval, and else after
// one that comes when all was quiet for long. Where none ever gets away in time, they leave in the
// third.
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &Throttle{Client: fake.NewClientBuilder().Build(), Migration: "m"}
		begin := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			if err := th.Begin(t.Context(), routed("cart"), routed("front")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("took %s, want %s", took, want)
			}
		}
		mayLeave := func(want bool) {
			t.Helper()
			if err := th.Open(); (err == nil) != want {
				t.Errorf("%v", err)
			}
		}
		mayLeave(false)
		begin(begun)
		mayLeave(true)
		begin(0)
		<-time.After(leaveWithin - begun)
		mayLeave(false)
		begin(rest + begun) // taking away what began the last is a change as well
		mayLeave(true)
		th.Arrived()
		if err := th.End(t.Context()); err != nil || th.Ended(t.Context()) != nil {
			t.Errorf("%v, %v", err, th.Ended(t.Context()))
		}
		for range patience - 1 {
			begin(rest + begun)
			<-time.After(leaveWithin)
			mayLeave(false)
			if th.Ended(t.Context()) == nil {
				t.Error("there is nothing to see")
			}
			if err := th.End(t.Context()); err != nil {
				t.Error(err)
			}
		}
		begin(rest + begun)
		<-time.After(leaveWithin)
		begin(rest + begun)
		<-time.After(leaveWithin)
		mayLeave(true)
	})
}

// TestNudge: what begins an interval has the ports of the Service, and an endpoint that kube-proxy
// passes over while there are others.
func TestNudge(t *testing.T) {
	s := routed("cart").nudge("m")
	c := s.Endpoints[0].Conditions
	if s.Labels[discoveryv1.LabelServiceName] != "cart" || *c.Ready || !*c.Serving || !*c.Terminating {
		t.Errorf("%v %+v", s.Labels, c)
	}
	if *s.Ports[0].Name != "http" || *s.Ports[0].Port != 80 || !slices.Equal(s.Endpoints[0].Addresses, []string{"10.96.3.7"}) {
		t.Errorf("%+v %+v", s.Ports, s.Endpoints)
	}
	if got := readyEndpoints([]discoveryv1.EndpointSlice{*s}, client.ObjectKeyFromObject(routed("cart").Service)); len(got) > 0 {
		t.Errorf("ready are %v", got)
	}
}
