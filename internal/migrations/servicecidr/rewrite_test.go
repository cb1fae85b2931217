//go:build apiserver

package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// byEtcd has everything but ClusterIP Services move by etcd, that of the API server of these tests.
func byEtcd(m *v1alpha1.Migration) {
	m.Spec.ServiceCIDR.Etcd = &v1alpha1.StoreSpec{Endpoints: []string{server.Etcd}}
	m.Spec.ServiceCIDR.Strategies = v1alpha1.StrategiesSpec{NodePort: v1alpha1.StrategyOfEtcd, LoadBalancer: v1alpha1.StrategyOfEtcd}
}

// balanced is what a load balancer's controller has made of a Service.
func (f *fixture) balanced(name, ip string) *corev1.Service {
	f.Helper()
	svc := f.service(name, at(ip), func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	})
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}
	f.must(server.Status().Update(f.Context(), svc))
	f.Cleanup(func() { f.unbind(name) })
	return f.get(name)
}

// unbind lets a Service go when it is deleted, as the controller does when there is no load
// balancer any more.
func (f *fixture) unbind(name string) {
	f.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	f.must(client.IgnoreNotFound(server.Patch(context.Background(), svc, patch)))
}

// unhoppables are Services that no hop can move, or that it would cost something.
func (f *fixture) unhoppables() []*corev1.Service {
	f.Helper()
	local := corev1.ServiceInternalTrafficPolicyLocal
	return []*corev1.Service{
		f.balanced("balanced", "10.96.3.1"),
		f.service("ports", at("10.96.3.2"), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }),
		f.service("outside", at("10.96.3.3"), func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.77"} }),
		f.service("local", at("10.96.3.4"), func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }),
		f.service("asked", at("10.96.3.5"), func(s *corev1.Service) {
			s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyEtcd}
		}),
	}
}

// seen is what a watch of Services has seen of one, in order.
type seen struct{ all []*corev1.Service }

// watch follows the Services of the shop until stop is called, which returns what was seen by name.
func (f *fixture) watch() (stop func() map[string]*seen) {
	f.Helper()
	w, err := server.Watch(f.Context(), &corev1.ServiceList{}, client.InNamespace("shop"))
	f.must(err)
	all, done := map[string]*seen{}, make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			svc, ok := e.Object.(*corev1.Service)
			if !ok {
				continue
			}
			if all[svc.Name] == nil {
				all[svc.Name] = &seen{}
			}
			if svc.Annotations["last"] != "" {
				return
			}
			all[svc.Name].all = append(all[svc.Name].all, svc)
		}
	}()
	return func() map[string]*seen {
		f.service("last", func(s *corev1.Service) { s.Annotations = map[string]string{"last": "yes"} }) // what is behind it was seen
		select {
		case <-done:
		case <-time.After(time.Minute):
			f.Fatal("the watch does not see the last Service")
		}
		w.Stop()
		f.must(server.Delete(f.Context(), f.get("last")))
		return all
	}
}

// addresses are those at which a Service was seen, each once for as long as it stayed.
func (s *seen) addresses() string {
	var all []string
	for _, svc := range s.all {
		all = append(all, svc.Spec.ClusterIP)
	}
	return strings.Join(slices.Compact(all), " ")
}

// TestRewrite: by etcd every Service moves and returns, and those who watch see nothing but the
// address change, once. The control hops: it is seen as another type.
func TestRewrite(t *testing.T) {
	f := setup(t, byEtcd)
	all := f.unhoppables()
	hopped := f.service("hopped", at("10.96.3.9"))
	stop := f.watch()
	f.apply()
	saw := stop()
	for _, was := range all {
		is := f.get(was.Name)
		to := strings.Replace(was.Spec.ClusterIP, "10.96.", "172.24.", 1)
		if is.Spec.ClusterIP != to {
			t.Errorf("%s is at %s, want %s", was.Name, is.Spec.ClusterIP, to)
		}
		f.moved(was, is)
		if got, want := saw[was.Name].addresses(), was.Spec.ClusterIP+" "+to; got != want {
			t.Errorf("%s was seen at %q, want %q", was.Name, got, want)
		}
		for _, svc := range saw[was.Name].all {
			f.sameButAddress(was, services.AsOwned(svc))
		}
	}
	asExternalName := func(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeExternalName }
	if !slices.ContainsFunc(saw["hopped"].all, asExternalName) {
		t.Error("the control was not seen to hop")
	}
	f.moved(hopped, f.get("hopped"))
	f.apply() // finds nothing to do
	f.must(f.rollback())
	for _, was := range all {
		f.returned(was)
	}
	f.nothingLeft()
}

// returned looks at a Service that is back at its address.
func (f *fixture) returned(was *corev1.Service) {
	f.Helper()
	is := f.get(was.Name)
	f.sameButAddress(was, is)
	if is.Spec.ClusterIP != was.Spec.ClusterIP || f.owner(was.Spec.ClusterIP) != "services shop/"+was.Name {
		f.Errorf("%s is back at %s, which belongs to %q", was.Name, is.Spec.ClusterIP, f.owner(was.Spec.ClusterIP))
	}
}

// moved looks at a Service that has moved, and at its addresses.
func (f *fixture) moved(was, is *corev1.Service) {
	f.Helper()
	f.sameButAddress(was, services.AsOwned(is))
	if form, itself := ownaddress.FormOf(is, netip.MustParseAddr(was.Spec.ClusterIP)); itself {
		f.keeps(was, is, form)
	} else {
		f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
	}
	if got, want := f.owner(is.Spec.ClusterIP), "services shop/"+was.Name; got != want {
		f.Errorf("address %s of %s belongs to %q, want %q", is.Spec.ClusterIP, was.Name, got, want)
	}
	a, b := was.Status.DeepCopy(), is.Status.DeepCopy()
	if len(a.LoadBalancer.Ingress) != len(services.AsOwned(is).Status.LoadBalancer.Ingress) || !slices.Equal(was.Finalizers, is.Finalizers) {
		f.Errorf("%s had %+v and has %+v", was.Name, a, b)
	}
}

// rival changes a Service of the shop, or takes its target, right before it is written to etcd.
type rival struct {
	exchange.Store
	act func(*corev1.Service)
}

func (r *rival) Exchange(ctx context.Context, all ...stored.Exchange) []error {
	for _, x := range all {
		if act := r.act; act != nil && x.Make == nil && x.Service.Namespace == "shop" {
			r.act = nil
			act(x.Service)
		}
	}
	return r.Store.Exchange(ctx, all...)
}

// TestRewriteNeverOverwrites: what others write in the last moment stays.
func TestRewriteNeverOverwrites(t *testing.T) {
	f := setup(t, byEtcd)
	f.balanced("balanced", "10.96.3.1")
	f.job.Deps.Store = &rival{Store: &exchange.Etcd{Spec: f.job.Spec.Store}, act: func(*corev1.Service) {
		svc := f.get("balanced")
		svc.Spec.Ports[0].Port = 8080
		f.must(server.Update(context.Background(), svc))
	}}
	f.apply()
	if is := f.get("balanced"); is.Spec.ClusterIP != "172.24.3.1" || is.Spec.Ports[0].Port != 8080 {
		t.Errorf("it is at %s with port %d", is.Spec.ClusterIP, is.Spec.Ports[0].Port)
	}
}
