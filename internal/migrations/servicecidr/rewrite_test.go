//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/testing/crash"
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

// unbind lets a Service go when it is deleted, as the controller does when there is no load balancer any more.
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
type seen struct{ specs []corev1.ServiceSpec }

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
			all[svc.Name].specs = append(all[svc.Name].specs, svc.Spec)
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
	for _, spec := range s.specs {
		all = append(all, spec.ClusterIP)
	}
	return strings.Join(slices.Compact(all), " ")
}

// TestRewrite: by etcd every Service moves and returns, and those who watch see nothing but the address change, once. The control hops: it is seen as
// another type.
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
		for _, spec := range saw[was.Name].specs {
			spec.ClusterIP, spec.ClusterIPs = was.Spec.ClusterIP, was.Spec.ClusterIPs
			f.sameButAddress(was, &corev1.Service{ObjectMeta: was.ObjectMeta, Spec: spec})
		}
	}
	asExternalName := func(s corev1.ServiceSpec) bool { return s.Type == corev1.ServiceTypeExternalName }
	if !slices.ContainsFunc(saw["hopped"].specs, asExternalName) {
		t.Error("the control was not seen to hop")
	}
	f.moved(hopped, f.get("hopped"))
	f.apply() // finds nothing to do
	f.must(f.rollback())
	for _, was := range all {
		is := f.get(was.Name)
		f.sameButAddress(was, is)
		if is.Spec.ClusterIP != was.Spec.ClusterIP || f.owner(was.Spec.ClusterIP) != "services shop/"+was.Name {
			t.Errorf("%s is back at %s, which belongs to %q", was.Name, is.Spec.ClusterIP, f.owner(was.Spec.ClusterIP))
		}
	}
	f.nothingLeft()
}

// moved looks at a Service that has moved, and at its addresses.
func (f *fixture) moved(was, is *corev1.Service) {
	f.Helper()
	f.sameButAddress(was, is)
	f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
	if got, want := f.owner(is.Spec.ClusterIP), "services shop/"+was.Name; got != want {
		f.Errorf("address %s of %s belongs to %q, want %q", is.Spec.ClusterIP, was.Name, got, want)
	}
	a, b := was.Status.DeepCopy(), is.Status.DeepCopy()
	if len(a.LoadBalancer.Ingress) != len(b.LoadBalancer.Ingress) || !slices.Equal(was.Finalizers, is.Finalizers) {
		f.Errorf("%s had %+v and has %+v", was.Name, a, b)
	}
}

// TestRewrittenIsTheAPIServersOwn: a Service that moved by etcd is one like any other for the API server. It takes changes of it, and when it is deleted
// gives its address back.
func TestRewrittenIsTheAPIServersOwn(t *testing.T) {
	f := setup(t, byEtcd)
	f.balanced("balanced", "10.96.3.1")
	f.apply()
	f.must(f.finish())
	is := f.get("balanced")
	if is.Spec.ClusterIP != "172.24.3.1" || f.owner("10.96.3.1") != "" {
		t.Errorf("it is at %s, and its old address belongs to %q", is.Spec.ClusterIP, f.owner("10.96.3.1"))
	}
	is.Spec.Ports[0].Port, is.Finalizers = 8080, nil
	f.must(server.Update(t.Context(), is))
	f.must(server.Delete(t.Context(), is))
	if by := f.owner("172.24.3.1"); by != "" {
		t.Errorf("its address still belongs to %s", by)
	}
}

// doomed is a process that ends right before or right after it writes to etcd.
type doomed struct {
	Store
	after bool
}

func (d doomed) Rewrite(ctx context.Context, svc *corev1.Service, swaps ...stored.Swap) error {
	if d.after {
		return errors.Join(d.Store.Rewrite(ctx, svc, swaps...), crash.ErrKilled)
	}
	return crash.ErrKilled
}

func TestRewriteKilled(t *testing.T) {
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, byEtcd)
			was := f.balanced("balanced", "10.96.3.1")
			kill := func(act func() error) {
				f.job.Tools.Store = doomed{Store: etcdStore{spec: f.job.Spec.Store}, after: after}
				if err := act(); !errors.Is(err, crash.ErrKilled) {
					t.Fatalf("the run ended with %v", err)
				}
				f.job.Tools.Store = nil
				f.again()
			}
			kill(func() error {
				_, err := f.job.Apply(t.Context(), f.runner)
				return err
			})
			f.apply()
			is := f.get("balanced")
			if is.Spec.ClusterIP != "172.24.3.1" {
				t.Errorf("it goes on to %s, want the address that was planned", is.Spec.ClusterIP)
			}
			f.moved(was, is)
			kill(f.rollback)
			f.must(f.rollback())
			f.sameButAddress(was, f.get("balanced"))
			f.nothingLeft()
		})
	}
}

func TestRewriteKilledAfterEveryWrite(t *testing.T) {
	var was *corev1.Service
	begin := func() *fixture {
		f := setup(t, byEtcd)
		f.balanced("balanced", "10.96.3.1")
		f.unbind("balanced") // the next run begins with an empty cluster
		was = f.get("balanced")
		return f
	}
	apply := func(f *fixture) error {
		_, err := f.job.Apply(t.Context(), f.runner)
		return err
	}
	everyWrite(t, 12, begin, apply, func(f *fixture, n int) {
		if n%2 == 1 {
			f.apply()
			f.moved(was, f.get("balanced"))
		} else if f.again() != nil {
			f.must(f.rollback())
			f.sameButAddress(was, f.get("balanced"))
			f.nothingLeft()
		}
	})
}

// rival changes the Service, or takes its target, right before it is written to etcd.
type rival struct {
	Store
	act func(*corev1.Service)
}

func (r *rival) Rewrite(ctx context.Context, svc *corev1.Service, swaps ...stored.Swap) error {
	if act := r.act; act != nil {
		r.act = nil
		act(svc)
	}
	return r.Store.Rewrite(ctx, svc, swaps...)
}

// TestRewriteNeverOverwrites: what others write in the last moment stays.
func TestRewriteNeverOverwrites(t *testing.T) {
	f := setup(t, byEtcd)
	f.balanced("balanced", "10.96.3.1")
	f.job.Tools.Store = &rival{Store: etcdStore{spec: f.job.Spec.Store}, act: func(*corev1.Service) {
		svc := f.get("balanced")
		svc.Spec.Ports[0].Port = 8080
		f.must(server.Update(context.Background(), svc))
	}}
	f.apply()
	if is := f.get("balanced"); is.Spec.ClusterIP != "172.24.3.1" || is.Spec.Ports[0].Port != 8080 {
		t.Errorf("it is at %s with port %d", is.Spec.ClusterIP, is.Spec.Ports[0].Port)
	}
}

// TestRewriteOfATakenTarget goes to the next address.
func TestRewriteOfATakenTarget(t *testing.T) {
	f := setup(t, byEtcd)
	was := f.balanced("balanced", "10.96.3.1")
	cut := *f.job.Tools.Cluster
	steal := func() { f.service("thief", at("172.24.3.1")) }
	cut.WithWatch = &holdThief{thief: thief{WithWatch: server.WithWatch, steal: steal}, of: "172.24.3.1"}
	f.through(&cut, func() { f.apply() })
	is := f.get("balanced")
	if a := netip.MustParseAddr(is.Spec.ClusterIP); a.String() == "172.24.3.1" || !netip.MustParsePrefix("172.24.0.0/16").Contains(a) {
		t.Errorf("it is at %s", a)
	}
	f.moved(was, is)
}

// holdThief takes one address the moment it is given back.
type holdThief struct {
	thief
	of string
}

func (c *holdThief) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if _, ok := o.(*networkingv1.IPAddress); ok && o.GetName() == c.of {
		return c.thief.Delete(ctx, o, opts...)
	}
	return c.WithWatch.Delete(ctx, o, opts...)
}

// TestRewriteIsRefused before anything is written, where etcd is not reached or is not known to be the cluster's.
func TestRewriteIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.StoreSpec)
		want   string
	}{
		"no etcd there": {func(s *v1alpha1.StoreSpec) { s.Endpoints = []string{"http://127.0.0.1:9"} }, "connection refused"},
		"other prefix":  {func(s *v1alpha1.StoreSpec) { s.Prefix = "/elsewhere" }, "there is nothing at /elsewhere/services/specs/shop/balanced"},
		"no Secret": {
			func(s *v1alpha1.StoreSpec) { s.Endpoints, s.Secret = []string{"https://127.0.0.1:9"}, "etcd" },
			"secret replumb-system/etcd is not there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, byEtcd, func(m *v1alpha1.Migration) { tt.change(m.Spec.ServiceCIDR.Etcd) })
			was := f.balanced("balanced", "10.96.3.1")
			f.blocked("RP1720", tt.want)
			if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion {
				t.Error("it was written")
			}
		})
	}
	t.Run("encoded otherwise", func(t *testing.T) {
		f := setup(t, byEtcd)
		was := f.balanced("balanced", "10.96.3.1")
		f.job.Tools.Store = refusing{}
		f.blocked("RP1720", "encrypted at rest")
		if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion {
			t.Error("it was written")
		}
	})
}

// refusing is an etcd in which all is encrypted.
type refusing struct{ Store }

func (refusing) Check(_ context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error) {
	_, err := stored.Readdress([]byte("k8s:enc:aescbc:v1:key1:"))
	return map[types.NamespacedName]error{client.ObjectKeyFromObject(all[0]): err}, nil
}

// blocked fails unless apply is refused by a finding that says so.
func (f *fixture) blocked(code, says string) {
	f.Helper()
	_, err := f.job.Apply(f.Context(), f.runner)
	p, examined := f.job.Examine(f.Context())
	f.must(examined)
	for _, x := range p.Findings.Blocking() {
		if x.Code == code && strings.Contains(x.Message, says) && err != nil {
			return
		}
	}
	f.Errorf("apply ended with %v, want it blocked by %s %q; blocking are %+v", err, code, says, p.Findings.Blocking())
}
