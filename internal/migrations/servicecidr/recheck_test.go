//go:build apiserver && long

package servicecidr

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// kubelets are played by a server in front of the API server: the real one asks none on this
// machine. Each node gives pods some cluster DNS.
func (f *fixture) kubelets(dns map[string]string) *cluster.Cluster {
	f.Helper()
	for node := range dns {
		f.must(server.Create(f.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	}
	to, err := url.Parse(server.Config.Host)
	f.must(err)
	if to.Host == "" {
		to = &url.URL{Scheme: "https", Host: server.Config.Host}
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	pass.Transport, err = rest.TransportFor(server.Config)
	f.must(err)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, asked := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/"), "/proxy/configz")
		if !asked {
			pass.ServeHTTP(w, r)
			return
		}
		_, _ = fmt.Fprintf(w, `{"kubeletconfig": {"clusterDomain": "cluster.local", "clusterDNS": [%q]}}`, dns[node])
	}))
	f.Cleanup(front.Close)
	c, err := cluster.Connect(&rest.Config{Host: front.URL})
	f.must(err)
	return c
}

// manager plays the pod of a controller manager.
func (f *fixture) manager(flags ...string) {
	f.Helper()
	f.must(server.Create(f.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem,
			Name:      "kube-controller-manager-a",
			Labels:    map[string]string{"component": "kube-controller-manager"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "c", Command: append([]string{"kube-controller-manager"}, flags...),
		}}},
	}))
}

// named are API servers with some addresses in their certificates, and a range.
type named struct {
	sans   []string
	ranges string
}

func (n named) InspectAll(context.Context, []string) []apiserver.APIServer {
	s := apiserver.APIServer{Address: "192.0.2.1:6443", Ranges: []netip.Prefix{netipPrefix(n.ranges)}}
	for _, text := range n.sans {
		s.SANs = append(s.SANs, netip.MustParseAddr(text))
	}
	return []apiserver.APIServer{s}
}

// gone is the planner of a cluster whose own Services have moved.
func (f *fixture) gone(inspector ranges.Inspector) *Planner {
	entry := func(namespace, name, was, is string) *services.Entry {
		return &services.Entry{Service: plainService(namespace, name, is), Old: netip.MustParseAddr(was), New: netip.MustParseAddr(is), Position: services.Moved}
	}
	f.job.Spec.From, f.job.Spec.APIServers = []netip.Prefix{netipPrefix("10.96.0.0/16")}, []string{"192.0.2.1:6443"}
	p := &Planner{Inventory: &services.Inventory{
		Spec: f.job.Spec,
		Moves: []*services.Entry{
			entry(
				metav1.NamespaceSystem,
				"kube-dns",
				"10.96.0.10",
				"172.24.0.10",
			),
			entry(metav1.NamespaceDefault, "kubernetes", "10.96.0.1", "172.24.0.1"),
		},
		DNS: map[types.NamespacedName]bool{services.KubeDNSKey(): true},
	}, Inspector: inspector}
	p.Tools, p.Migration = f.job.Deps.Deps, f.job.Migration
	return p
}

// TestFinishLooksAgain: nodes, certificates and flags that were in order once, and are not any
// more, stop finish before its point of no return. The control is the plan of before, which has
// only the steps that come after.
func TestFinishLooksAgain(t *testing.T) {
	good := named{[]string{"10.96.0.1", "172.24.0.1"}, "172.24.0.0/16"}
	for name, tt := range map[string]struct {
		servers named
		dns     string
		flags   []string
		// want is what is wrong; nothing, if nothing is.
		want, hint string
	}{
		"in order": {servers: good, dns: "172.24.0.10", flags: []string{"--service-cluster-ip-range=172.24.0.0/16"}},
		"no flag":  {servers: good, dns: "172.24.0.10"},
		"a node that joined": {
			servers: good, dns: "10.96.0.10", want: "the kubelet of node late gives pods clusterDNS 10.96.0.10", hint: "launch templates",
		},
		"old name gone": {
			servers: named{[]string{"172.24.0.1"}, "172.24.0.0/16"}, dns: "172.24.0.10", want: "10.96.0.1", hint: "names 10.96.0.1",
		},
		"new name gone": {
			servers: named{[]string{"10.96.0.1"}, "172.24.0.0/16"}, dns: "172.24.0.10", want: "172.24.0.1", hint: "Both addresses",
		},
		"an API server that was replaced": {
			servers: named{good.sans, "10.96.0.0/16"}, dns: "172.24.0.10", want: "--service-cluster-ip-range is not 172.24.0.0/16 on 192.0.2.1:6443",
		},
		"a controller manager": {
			servers: good, dns: "172.24.0.10", flags: []string{"--service-cluster-ip-range", "10.96.0.0/16"},
			want: "--service-cluster-ip-range is not 172.24.0.0/16 on kube-controller-manager-a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.job.Deps.Cluster = f.kubelets(map[string]string{"first": "172.24.0.10", "late": tt.dns})
			f.manager(tt.flags...)
			var wrong []error
			for _, g := range f.gone(tt.servers).recheck() {
				for _, s := range g.Steps {
					if err := s.Verify(t.Context()); err != nil {
						wrong = append(wrong, err)
					}
				}
			}
			if tt.want == "" {
				if len(wrong) > 0 {
					t.Errorf("wrong: %v", wrong)
				}
				return
			}
			if len(wrong) != 1 || !strings.Contains(wrong[0].Error(), tt.want) || !strings.HasPrefix(wrong[0].Error(), "not finished: ") {
				t.Fatalf("wrong: %v", wrong)
			}
			if hint := fault.Advice(
				wrong[0],
			); !strings.Contains(hint, "nothing is final yet") ||
				!strings.Contains(hint, strings.TrimPrefix(tt.hint, "names ")) {
				t.Errorf("hint %s", hint)
			}
		})
	}
}

// TestRecheckComesBeforeThePointOfNoReturn, and not again after it.
func TestRecheckComesBeforeThePointOfNoReturn(t *testing.T) {
	names := commands().Finish.Names()
	if slices.Index(names, "recheck")+1 != slices.Index(names, "final") {
		t.Errorf("phases %v", names)
	}
	f := setup(t)
	p := f.gone(named{ranges: "10.96.0.0/16"})
	if len(p.recheck()) == 0 {
		t.Error("nothing is looked at again")
	}
	p.Migration.Status.PointOfNoReturnPassed = true
	if groups := p.recheck(); len(groups) > 0 {
		t.Errorf("what is final is not asked again: %v", groups)
	}
}

// TestReleaseInBatches: what is lost, or not proven, stops finish before the next batch, whose
// bridges stay; the same command goes on. The control, all of them at once, leaves none.
func TestReleaseInBatches(t *testing.T) {
	for name, size := range map[string]int{"batches": 2, "at once": 6} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Batch.Size = size })
			f.node("a", "192.0.2.1")
			var was []*corev1.Service
			for i := range 5 {
				was = append(was, f.service(fmt.Sprintf("cart-%d", i), at(fmt.Sprintf("10.96.3.%d", i+7))))
			}
			f.apply()
			f.runner.Deadline = 0
			f.on(engine.StepDone, "release/", func() {
				f.probe.mu.Lock()
				defer f.probe.mu.Unlock()
				f.probe.deaf = map[string]bool{"a": true}
			})
			ctx, stop := context.WithCancel(t.Context())
			f.on(engine.StepWaiting, "barrier/", stop)
			if err := f.job.Finish(ctx, f.runner); err == nil {
				t.Fatal("a node that knows nothing of it does not stop finish")
			}
			stop()
			bridges := 0
			for _, w := range was {
				if f.there(bridge.Name(w.Name, w.UID)) {
					bridges++
				}
			}
			if want := max(0, 5-size); bridges != want {
				t.Errorf("%d bridges are left, want %d", bridges, want)
			}
			f.probe.mu.Lock()
			f.probe.deaf = nil
			f.probe.mu.Unlock()
			f.again()
			f.must(f.finish())
			f.nothingLeft()
		})
	}
}

// there reports whether there is a Service.
func (f *fixture) there(name string) bool {
	f.Helper()
	all := &corev1.ServiceList{}
	f.must(server.List(f.Context(), all))
	return slices.ContainsFunc(all.Items, func(s corev1.Service) bool { return s.Namespace == "shop" && s.Name == name })
}

// TestIdentitiesArePinned: Services that are known by their ClusterIP keep it, and a range that
// covers it; without their labels, as the control, or with an annotation that asks for it, they
// move.
func TestIdentitiesArePinned(t *testing.T) {
	f := setup(t)
	labelled := func(ip, key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			at(ip)(s)
			s.Labels = map[string]string{key: value}
		}
	}
	pinned := []*corev1.Service{
		f.service("rook-ceph-mon-a", labelled("10.96.3.7", "app", "rook-ceph-mon")),
		f.service("pvc-1", labelled("10.96.3.8", "openebs.io/target-service", "cstor-target-svc")),
		f.service("pvc-2-jiva-ctrl-svc", labelled("10.96.3.9", "openebs.io/component", "jiva-controller-service")),
		f.service("pvc-3-ctrl-svc", labelled("10.96.3.10", "openebs.io/controller-service", "jiva-controller-svc")),
		f.service("pvc-4", labelled("10.96.3.11", "longhorn.io/share-manager", "pvc-4")),
	}
	f.service("rook-ceph-mgr", labelled("10.96.3.20", "app", "rook-ceph-mgr"))
	f.service("asked", func(s *corev1.Service) {
		labelled("10.96.3.21", "app", "rook-ceph-mon")(s)
		s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyHop}
	})
	p, err := f.job.Examine(t.Context())
	f.must(err)
	found := 0
	for _, x := range p.Findings {
		if x.Code == "RP1019" && x.Object != "" {
			found++
		}
	}
	if found != len(pinned) {
		t.Errorf("RP1019 names %d of %d", found, len(pinned))
	}
	f.apply()
	for _, w := range pinned {
		f.unchanged(w)
	}
	for name, want := range map[string]string{"rook-ceph-mgr": "172.24.3.20", "asked": "172.24.3.21"} {
		if is := f.get(name); is.Spec.ClusterIP != want {
			t.Errorf("%s is at %s, want %s", name, is.Spec.ClusterIP, want)
		}
	}
}

// TestOwnAddressesOfBridgesAreLeft, beside those of Services: names lead there in the middle of a
// hop.
func TestOwnAddressesOfBridgesAreLeft(t *testing.T) {
	f, was := moved(t, overlapBy(v1alpha1.OverlapBridge))
	inventory, err := f.job.LoadInventory(t.Context())
	f.must(err)
	b := f.get(bridge.Name(was.Name, was.UID))
	leaving := addressesLeft((&Planner{Inventory: inventory}), engine.Forward)
	for _, a := range []string{was.Spec.ClusterIP, b.Spec.ClusterIP} {
		if !leaving[a] {
			t.Errorf("%s is not among %v", a, leaving)
		}
	}
}
