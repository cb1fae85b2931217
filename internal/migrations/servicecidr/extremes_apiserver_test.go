//go:build apiserver && long

package servicecidr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/network/bridge"
)

// ports gives a Service as many ports, of TCP and UDP in turn.
func ports(n int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range n {
			proto := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[i%2]
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: fmt.Sprintf("p%d", i), Protocol: proto, Port: int32(7000 + i), TargetPort: intstr.FromInt(9000 + i),
			})
		}
	}
}

// endpointPorts are those of a Service with as many ports.
func endpointPorts(n int) (all []discoveryv1.EndpointPort) {
	s := &corev1.Service{}
	ports(n)(s)
	for _, p := range s.Spec.Ports {
		all = append(all, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.TargetPort.IntVal})
	}
	return all
}

// TestManyPortsMove: Services of 250 ports of both protocols, which controllers find endpoints for,
// which are led by hand, and which have as many node ports.
func TestManyPortsMove(t *testing.T) {
	const n = 250
	f := setup(t)
	byHand := f.slice("by-hand", "192.0.2.7")
	byHand.Ports = endpointPorts(n)
	f.must(server.Update(t.Context(), byHand))
	was := []*corev1.Service{
		f.service("many", at("10.96.3.7"), ports(n)), f.service("by-hand", at("10.96.3.8"), ports(n), withoutSelector),
		f.service("outside", at("10.96.3.9"), ports(n), nodePort),
	}
	f.apply()
	for _, w := range was {
		is, b := f.get(w.Name), f.get(bridge.Name(w.Name, w.UID))
		f.sameButAddress(w, is)
		f.checkBridge(w, is, v1alpha1.BridgeLoadBalancer)
		if len(b.Spec.Ports) != n {
			t.Errorf("the bridge of %s has %d ports", w.Name, len(b.Spec.Ports))
		}
	}
	copies := &discoveryv1.EndpointSliceList{}
	f.must(server.List(t.Context(), copies, client.InNamespace("shop"),
		client.MatchingLabels{discoveryv1.LabelServiceName: bridge.Name(was[1].Name, was[1].UID)}))
	if len(copies.Items) != 1 || !equality.Semantic.DeepEqual(copies.Items[0].Ports, byHand.Ports) {
		t.Errorf("the bridge of %s has endpoints %+v", was[1].Name, copies.Items)
	}
	f.must(f.rollback())
	for _, w := range was {
		f.rolledBack(w)
	}
}

// TestLongestNamesMove: namespace and Service have names of 63 letters, as has the bridge, which is
// told from that of another such Service.
func TestLongestNamesMove(t *testing.T) {
	f := setup(t)
	namespace, name := strings.Repeat("n", 63), strings.Repeat("s", 63)
	server.Namespace(t, namespace)
	var was []*corev1.Service
	for i, s := range []*corev1.Service{plainService(namespace, name, "10.96.3.7"), plainService(namespace, name[1:]+"2", "10.96.3.8")} {
		if i == 1 {
			s.Spec.Selector = nil
		}
		f.must(server.Create(t.Context(), s))
		was = append(was, s)
	}
	proto, port, portName := corev1.ProtocolTCP, int32(8080), was[1].Spec.Ports[0].Name
	f.must(server.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: strings.Repeat("e", 253), Labels: map[string]string{discoveryv1.LabelServiceName: was[1].Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &proto, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
	}))
	f.apply()
	for i, w := range was {
		is, b := &corev1.Service{}, &corev1.Service{}
		f.must(server.Get(t.Context(), client.ObjectKeyFromObject(w), is))
		f.sameButAddress(w, is)
		key := client.ObjectKey{Namespace: namespace, Name: bridge.Name(w.Name, w.UID)}
		f.must(server.Get(t.Context(), key, b))
		if want := fmt.Sprintf("172.24.3.%d", 7+i); is.Spec.ClusterIP != want || len(b.Name) != 63 {
			t.Errorf("%s is at %s, want %s; its bridge is %s", w.Name, is.Spec.ClusterIP, want, b.Name)
		}
	}
	f.must(f.finish())
	f.nothingLeft()
}

// TestFinalizersAndOwnersAreKept: a Service keeps who owns it, and who is to hear of its end. A
// bridge has neither: no garbage collector takes it away from under its Service, and no finalizer
// keeps it.
func TestFinalizersAndOwnersAreKept(t *testing.T) {
	f := setup(t)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "owner"}}
	f.must(server.Create(t.Context(), owner))
	yes := true
	was := f.service("cart", at("10.96.3.7"), func(s *corev1.Service) {
		s.Finalizers = []string{"example.com/last-word"}
		s.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: &yes, BlockOwnerDeletion: &yes,
		}}
	})
	same := func() {
		t.Helper()
		is := f.get("cart")
		if !slices.Equal(is.Finalizers, was.Finalizers) || !equality.Semantic.DeepEqual(is.OwnerReferences, was.OwnerReferences) {
			t.Errorf("owned by %v, with finalizers %v", is.OwnerReferences, is.Finalizers)
		}
	}
	f.apply()
	f.sameButAddress(was, f.get("cart"))
	same()
	if b := f.get(bridge.Name(was.Name, was.UID)); len(b.OwnerReferences)+len(b.Finalizers) > 0 {
		t.Errorf("the bridge is owned by %v, with finalizers %v", b.OwnerReferences, b.Finalizers)
	}
	f.must(f.rollback())
	f.rolledBack(was)
	same()
	f.letGo("cart")
}

// letGo takes the finalizers from a Service.
func (f *fixture) letGo(name string) {
	f.Helper()
	svc := f.get(name)
	svc.Finalizers = nil
	f.must(server.Update(f.Context(), svc))
}

// TestFinalizerKeepsADeletedService: a Service that was deleted and that a finalizer keeps does not
// hold up finish, and is left where it is.
func TestFinalizerKeepsADeletedService(t *testing.T) {
	for _, command := range []string{"finish", "rollback"} {
		t.Run(command, func(t *testing.T) {
			f := setup(t)
			was := f.service("cart", at("10.96.3.7"), func(s *corev1.Service) { s.Finalizers = []string{"example.com/last-word"} })
			f.service("pay", at("10.96.3.9"))
			f.apply()
			f.must(server.Delete(t.Context(), was))
			f.again()
			run := map[string]func() error{"finish": f.finish, "rollback": f.rollback}[command]
			f.must(run())
			if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" || len(is.Finalizers) != 1 {
				t.Errorf("at %s, with finalizers %v", is.Spec.ClusterIP, is.Finalizers)
			}
			f.letGo("cart")
			f.nothingLeft()
		})
	}
}

// TestQuotas: what a quota leaves no room for is found before the first write; where it forbids but
// one form of bridges, they have the other.
func TestQuotas(t *testing.T) {
	type quota struct {
		resource   corev1.ResourceName
		used, hard int64
	}
	for name, tt := range map[string]struct {
		kind  func(*corev1.Service)
		quota quota
		// refused names the finding, if it stops the move; form is that of bridges otherwise.
		refused string
		form    v1alpha1.BridgeForm
	}{
		"no load balancers":             {quota: quota{corev1.ResourceServicesLoadBalancers, 0, 0}, form: v1alpha1.BridgeExternalIPs},
		"room for one load balancer":    {quota: quota{corev1.ResourceServicesLoadBalancers, 0, 1}, refused: "RP1004"},
		"room for both load balancers":  {quota: quota{corev1.ResourceServicesLoadBalancers, 0, 2}, form: v1alpha1.BridgeLoadBalancer},
		"all Services used":             {quota: quota{corev1.ResourceServices, 2, 2}, refused: "RP1004"},
		"all Services used, by count":   {quota: quota{"count/services", 2, 2}, refused: "RP1004"},
		"room for both bridges":         {quota: quota{"count/services", 2, 4}, form: v1alpha1.BridgeLoadBalancer},
		"all node ports used":           {kind: nodePort, quota: quota{corev1.ResourceServicesNodePorts, 4, 4}, refused: "RP1702"},
		"room for all node ports twice": {kind: nodePort, quota: quota{corev1.ResourceServicesNodePorts, 4, 8}, form: v1alpha1.BridgeLoadBalancer},
		"node ports of Services of one": {quota: quota{corev1.ResourceServicesNodePorts, 0, 0}, form: v1alpha1.BridgeLoadBalancer},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			if tt.kind == nil {
				tt.kind = func(*corev1.Service) {}
			}
			was := []*corev1.Service{f.service("cart", at("10.96.3.7"), tt.kind), f.service("pay", at("10.96.3.9"), tt.kind)}
			f.heardQuota(tt.quota.resource, tt.quota.used, tt.quota.hard)
			_, err := f.job.Apply(t.Context(), f.runner)
			if tt.refused == "" {
				f.must(err)
				for _, w := range was {
					f.checkBridge(w, f.get(w.Name), tt.form)
				}
				return
			}
			if blocked := (*findings.BlockedError)(nil); !errors.As(err, &blocked) || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("apply ended with %v, want %s", err, tt.refused)
			}
			for _, w := range was {
				if f.get(w.Name).ResourceVersion != w.ResourceVersion {
					t.Errorf("%s was written", w.Name)
				}
			}
			if err := f.unchecked(); err == nil {
				t.Error("control: without looking the move goes through")
			}
		})
	}
}

// heardQuota makes a quota, and waits until the API server has heard of it, which it has of one
// that was made later.
func (f *fixture) heardQuota(what corev1.ResourceName, used, hard int64) {
	f.Helper()
	f.quota("quota", what, used, hard)
	f.refused(func(ctx context.Context) (*admission.Refusal, error) {
		return admission.Create(ctx, server, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "another"}})
	}, func() { f.quota("heard", "count/configmaps", 9, 9) })
}

// recount is what the controller of quotas does after a while: no one else is here who counts.
func (f *fixture) recount(used int64) {
	f.Helper()
	q := &corev1.ResourceQuota{}
	f.must(server.Get(f.Context(), client.ObjectKey{Namespace: "shop", Name: "quota"}, q))
	q.Status.Used = corev1.ResourceList{corev1.ResourceServicesNodePorts: *resource.NewQuantity(used, resource.DecimalSI)}
	f.must(server.Status().Update(f.Context(), q))
}

// TestHopsWaitForQuotas: a quota counts the node ports that a Service has given up until its
// controller has counted again. The next Service with node ports keeps its address until then; one
// that is between its patches arrives as soon as there is room.
func TestHopsWaitForQuotas(t *testing.T) {
	t.Run("before the first patch", func(t *testing.T) {
		f := setup(t)
		f.service("cart", at("10.96.3.7"), nodePort)
		pay := f.service("pay", at("10.96.3.9"), nodePort)
		f.heardQuota(corev1.ResourceServicesNodePorts, 4, 6)
		waited := false
		f.on(engine.StepWaiting, "hop/shop/pay", func() {
			waited = !f.half(pay)
			f.recount(4)
		})
		f.apply()
		if !waited || f.get("pay").Spec.ClusterIP != "172.24.3.9" {
			t.Errorf("pay waited at its address: %t; it is at %s", waited, f.get("pay").Spec.ClusterIP)
		}
		f.sameButAddress(pay, f.get("pay"))
	})
	t.Run("between the patches", func(t *testing.T) {
		f := setup(t)
		cart := f.service("cart", at("10.96.3.7"), nodePort)
		f.heardQuota(corev1.ResourceServicesNodePorts, 2, 3)
		waited := false
		f.on(engine.StepWaiting, "hop/shop/cart", func() {
			waited = f.half(cart)
			f.recount(0)
		})
		blind := *f.job.Deps.Cluster
		blind.WithWatch = withoutQuotas{blind.WithWatch}
		f.through(&blind, func() { f.apply() })
		if !waited {
			t.Error("it did not wait")
		}
		f.sameButAddress(cart, f.get("cart"))
	})
}

// withoutQuotas is a client that sees no quotas.
type withoutQuotas struct{ client.WithWatch }

func (c withoutQuotas) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, quotas := list.(*corev1.ResourceQuotaList); quotas {
		return nil
	}
	return c.WithWatch.List(ctx, list, opts...)
}

// TestServicesWithoutAddressesAreUntouched: headless Services and aliases are the same, byte for
// byte, after each command.
func TestServicesWithoutAddressesAreUntouched(t *testing.T) {
	f := setup(t)
	f.service("cart")
	names := []string{"headless", "headless-by-hand", "elsewhere", "elsewhere-with-ports"}
	alias := func(ports ...corev1.ServicePort) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: ports}
		}
	}
	f.service(names[0], at("None"))
	f.service(names[1], at("None"), withoutSelector)
	f.service(names[2], alias())
	f.service(names[3], alias(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP}))
	bytesOf := func() map[string]string {
		all := map[string]string{}
		for _, name := range names {
			body, err := json.Marshal(f.get(name))
			f.must(err)
			all[name] = string(body)
		}
		return all
	}
	was := bytesOf()
	requireSame := func(after string) {
		t.Helper()
		for name, is := range bytesOf() {
			if is != was[name] {
				t.Errorf("after %s %s was\n%s\nis\n%s", after, name, was[name], is)
			}
		}
	}
	f.apply()
	requireSame("apply")
	f.must(f.rollback())
	requireSame("rollback")
	f.again()
	f.apply()
	requireSame("apply again")
	f.must(f.finish())
	requireSame("finish")
	f.nothingLeft()
}
