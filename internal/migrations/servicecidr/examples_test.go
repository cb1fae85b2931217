//go:build apiserver && long

package servicecidr

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/reporting/notify"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec"
)

const examples = "../../../examples/service-cidr/"

// servers play the API servers: each has a certificate for the old and the new address of
// kubernetes, and the old range.
type servers struct {
	mu    sync.Mutex
	asked []string
	// renewed, if set, says whether they have got certificates with the new address.
	renewed func() bool
}

func (s *servers) InspectAll(_ context.Context, addresses []string) []apiserver.APIServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []apiserver.APIServer
	sans := []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	if s.renewed == nil || s.renewed() {
		sans = append(sans, netip.MustParseAddr("172.24.0.1"))
	}
	for _, a := range addresses {
		s.asked = append(s.asked, a)
		all = append(all, apiserver.APIServer{
			Address: a,
			SANs:    sans,
			Ranges:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		})
	}
	return all
}

// exampleRun is one example on a cluster with a few Services.
type exampleRun struct {
	*fixture
	servers *servers
	posted  *mailbox
	applied *services.Inventory
}

// mailbox is a URL that takes everything.
type mailbox struct {
	mu     sync.Mutex
	bodies []string
}

func (m *mailbox) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bodies = append(m.bodies, r.URL.Path+" "+string(body))
}

func (m *mailbox) has(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.bodies, func(b string) bool { return strings.Contains(b, text) })
}

// TestExamplesRun applies each example and rolls it back. Where the API servers would have to get
// another range, which this one cannot, it stops before that: everything has moved then, kubernetes
// included.
func TestExamplesRun(t *testing.T) {
	const beforeRepoint = "refresh"
	cases := map[string]struct {
		until   string
		prepare func(*exampleRun)
		check   func(*exampleRun)
	}{
		"basic.yaml": {until: beforeRepoint, check: func(r *exampleRun) {
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
			r.isAt(metav1.NamespaceSystem, "kube-dns", "172.24.0.10")
			r.isAt("shop", "cart", "172.24.3.7")
		}},
		"kubeadm.yaml": {until: beforeRepoint, check: func(r *exampleRun) {
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
		}},
		"tiers-and-windows.yaml": {until: beforeRepoint, check: func(r *exampleRun) {
			r.inOrder("hop/staging/trial", "hop/shop/cart", "hop/shop/pay", "hop/kube-system/kube-dns")
			r.did("window/batch 1 of 4")
		}},
		"hooks-and-notify.yaml": {until: beforeRepoint, prepare: (*exampleRun).hooks, check: (*exampleRun).wasTold},
		"tier-lookup.yaml": {until: beforeRepoint, check: func(r *exampleRun) {
			// Both are of tier high, and of one batch, which hops side by side.
			r.inOrder("hop/shop/cart", "hop/staging/trial", "hop/default/kubernetes")
			r.inOrder("hop/shop/cart", "hop/shop/pay", "hop/default/kubernetes")
			if got := r.applied.TierProblems; len(got) != 1 || got[0].Service.Name != "trial" {
				r.Errorf("the lookup does not know %v, want staging/trial", got)
			}
		}},
		"partial.yaml": {check: func(r *exampleRun) {
			r.isAt("shop", "cart", "172.24.3.7")
			r.isAt("shop", "pay", "10.96.3.9")
			r.isAt(metav1.NamespaceDefault, "kubernetes", "10.96.0.1")
			r.hasRange("10.96.3.8/30")
		}, prepare: func(r *exampleRun) { r.pin("pay") }},
		"operator.yaml": {check: func(r *exampleRun) { // TestOperator of internal/cli has an operator carry it out
			if r.job.Migration.Spec.Desired != v1alpha1.DesiredApplied {
				r.Errorf("the operator would leave it %q", r.job.Migration.Spec.Desired)
			}
			r.isAt("shop", "cart", "172.24.3.7")
			r.isAt(metav1.NamespaceDefault, "kubernetes", "10.96.0.1")
		}},
		"extend.yaml": {check: func(r *exampleRun) {
			r.isAt("shop", "cart", "10.96.3.7")
			r.hasRange("172.24.0.0/16")
		}},
		"retire.yaml": {
			prepare: func(r *exampleRun) {
				r.must(server.Create(r.Context(), serviceRange("second", "172.20.0.0/16")))
				r.eventually("a Service in the second range", func() error {
					svc := plainService("shop", "old", "172.20.3.7")
					return server.Create(r.Context(), svc)
				})
			},
			check: func(r *exampleRun) {
				r.isAt("shop", "old", "172.24.3.7")
				r.isAt("shop", "cart", "10.96.3.7")
				r.eventually("the range to be gone", func() error {
					err := server.Get(r.Context(), client.ObjectKey{Name: "second"}, &networkingv1.ServiceCIDR{})
					if apierrors.IsNotFound(err) {
						return nil
					}
					return errNotYet
				})
			},
		},
		"cautious.yaml": {check: func(r *exampleRun) {
			r.isAt("shop", "cart", "172.24.3.7")
			r.inOrder("canary/externalip", "hop/shop/cart")
			r.did("secure/freeze")
			if all, err := backup.Read(r.Context(), server, r.job.Spec.Name); err != nil || len(all) == 0 {
				r.Errorf("%d backups, %v", len(all), err)
			}
		}},
		"proof.yaml": {check: func(r *exampleRun) {
			r.isAt("shop", "cart", "172.24.3.7")
			r.did("agents/steady")
			r.inOrder("agents/host", "hop/replumb-system/probe", "hop/shop/cart")
			r.inOrder("agents/single", "hop/replumb-system/single", "hop/shop/cart")
			r.inOrder("agents/pods", "hop/replumb-system/probe")
		}},
		"gate-actions.yaml": {until: beforeRepoint, prepare: (*exampleRun).playbook, check: func(r *exampleRun) {
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
			r.inOrder("hop/shop/cart", "gate/certificates", "hop/default/kubernetes")
			r.did("gate/kubelets") // there is no kubelet that has to be changed
			if r.posted.has("kubelets") {
				r.Error("the URL for kubelets was called")
			}
		}},
		// Its actions need a management cluster: TestClusterAPIServices of the lab has one.
		"cluster-api.yaml": {until: beforeRepoint, prepare: func(r *exampleRun) { r.job.Spec.Actions = nil }, check: func(r *exampleRun) {
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
		}},
		"etcd.yaml": {until: beforeRepoint, prepare: func(r *exampleRun) {
			r.balanced("balanced", "10.96.3.10")
			// The example is for a control plane of kubeadm's.
			r.job.Deps.Store = &exchange.Etcd{Spec: &v1alpha1.StoreSpec{Endpoints: []string{server.Etcd}, Prefix: stored.DefaultPrefix}}
		}, check: func(r *exampleRun) {
			r.isAt("shop", "balanced", "172.24.3.10")
			r.isAt("shop", "cart", "172.24.3.7")
		}},
		"kubeadm-etcd.yaml": {until: beforeRepoint, prepare: func(r *exampleRun) {
			r.balanced("balanced", "10.96.3.10")
			// No node runs the pod on a control plane: TestKubeadmStored of the lab has it.
			r.job.Deps.Store = &exchange.Etcd{Spec: &v1alpha1.StoreSpec{Endpoints: []string{server.Etcd}, Prefix: stored.DefaultPrefix}}
			r.apiServerOfKubeadm("cp1")
			for _, spec := range []*v1alpha1.MigrationSpec{&r.job.Spec.Common, &r.job.Migration.Spec} {
				spec.Image, spec.Proof.Agents = "replumb.example/replumb:test", v1alpha1.AgentsDisabled
			}
		}, check: func(r *exampleRun) {
			r.isAt("shop", "balanced", "172.24.3.10")
			r.isAt("shop", "cart", "172.24.3.7")
		}},
		"cilium.yaml": {until: beforeRepoint, prepare: func(r *exampleRun) {
			config := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cilium-config"},
				Data:       map[string]string{"kube-proxy-replacement": "true"},
			}
			r.must(server.Create(r.Context(), config))
			r.Cleanup(func() { _ = server.Delete(context.Background(), config) })
			r.job.Deps.Store = &exchange.Etcd{Spec: &v1alpha1.StoreSpec{Endpoints: []string{server.Etcd}, Prefix: stored.DefaultPrefix}}
		}, check: func(r *exampleRun) {
			r.isAt("shop", "cart", "172.24.3.7")
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
			r.inOrder("agents/pods", "own/shop/cart", "hop/shop/cart")
			r.did("secure/keep-type")
		}},
		"api-servers.yaml": {until: beforeRepoint, check: func(r *exampleRun) {
			r.isAt(metav1.NamespaceDefault, "kubernetes", "172.24.0.1")
			for _, a := range r.job.Spec.APIServers {
				if !slices.Contains(r.servers.asked, a) {
					r.Errorf("API server %s was not looked at", a)
				}
			}
		}},
	}
	files, err := filepath.Glob(examples + "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		c, known := cases[name]
		if !known {
			t.Errorf("%s is run by no test", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := example(t, file)
			before := r.services()
			if c.prepare != nil {
				c.prepare(r)
				before = r.services()
			}
			r.job.Until = c.until
			r.apply()
			c.check(r)
			r.rollback()
			if after := r.services(); !equality.Semantic.DeepEqual(before, after) {
				t.Errorf("Services were\n%+v\nare\n%+v", before, after)
			}
		})
	}
}

// example reads one and shortens its times, so that all that is left of them is that they are
// there.
func example(t *testing.T, file string) *exampleRun {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	m, err := spec.Read(spec.Source{Name: file, Body: body, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	r := &exampleRun{fixture: setup(t), servers: &servers{}, posted: &mailbox{}}
	hurry(m)
	tools := r.job.Deps
	tools.Inspector = r.servers
	if r.job, err = NewJob(tools, m); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"shop", "staging"} {
		server.Namespace(t, ns)
	}
	for _, svc := range []*corev1.Service{
		plainService("shop", "cart", "10.96.3.7"), plainService("shop", "pay", "10.96.3.9"),
		plainService("staging", "trial", "10.96.4.1"), plainService(metav1.NamespaceSystem, "kube-dns", "10.96.0.10"),
	} {
		r.must(server.Create(t.Context(), svc))
	}
	return r
}

// hurry takes the waiting out of a Migration.
func hurry(m *v1alpha1.Migration) {
	none := &metav1.Duration{}
	m.Spec.ServiceCIDR.Drain, m.Spec.Batch.Settle = none, none
	m.Spec.ServiceCIDR.Follower = v1alpha1.FollowerDisabled // no node runs its replicas
	m.Spec.ServiceCIDR.Gates = ""                           // nor the pods of gates: TestKubeadmGates of the lab has them
	for i := range m.Spec.Tiers {
		m.Spec.Tiers[i].Pause = none
	}
	for i := range m.Spec.Windows {
		m.Spec.Windows[i] = v1alpha1.Window{Start: "00:00", End: "00:00"} // the whole day
	}
	if m.Spec.Freeze == "" {
		m.Spec.Freeze = v1alpha1.FreezeDisabled // it takes the API server seconds to take a freeze up; one example has it
	}
}

func plainService(namespace, name, ip string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	if name == "cart" {
		svc.Labels = map[string]string{"criticality": "low", "tier": "web"}
	}
	return svc
}

func serviceRange(name, cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}},
	}
}

// apply runs the example with those who are told of it.
func (r *exampleRun) apply() {
	r.Helper()
	notifier := notify.New(r.job.Spec.Common.Notify, func(err error) { r.Error(err) })
	runner := *r.runner
	runner.Sink = func(e engine.Event) {
		r.runner.Sink(e)
		notifier.Event(e)
	}
	p, err := r.job.Apply(r.Context(), &runner)
	r.must(err)
	r.applied = p.Inventory
	r.must(notifier.Close(r.Context()))
	m, err := migration.Get(r.Context(), server, r.job.Spec.Name)
	r.must(err)
	r.job.Migration = m
}

func (r *exampleRun) rollback() {
	r.Helper()
	r.must(r.job.Rollback(r.Context(), r.runner))
}

// services are the specs of all Services, by name. Backups that are to be kept are in no Service.
func (r *exampleRun) services() map[string]corev1.ServiceSpec {
	r.Helper()
	all := &corev1.ServiceList{}
	r.must(server.List(r.Context(), all))
	specs := map[string]corev1.ServiceSpec{}
	for _, s := range all.Items {
		specs[s.Namespace+"/"+s.Name] = s.Spec
	}
	return specs
}

func (r *exampleRun) isAt(namespace, name, ip string) {
	r.Helper()
	svc := &corev1.Service{}
	r.must(server.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: name}, svc))
	if svc.Spec.ClusterIP != ip {
		r.Errorf("service %s/%s is at %s, want %s", namespace, name, svc.Spec.ClusterIP, ip)
	}
}

func (r *exampleRun) hasRange(cidr string) {
	r.Helper()
	all, err := ranges.ServiceCIDRs(r.Context(), server)
	r.must(err)
	if !slices.ContainsFunc(all, func(c networkingv1.ServiceCIDR) bool { return slices.Contains(c.Spec.CIDRs, cidr) }) {
		r.Errorf("there is no ServiceCIDR %s", cidr)
	}
}

// at is when a step was done in the run so far; -1, if it was not.
func (r *exampleRun) at(step string) int {
	return slices.IndexFunc(r.events, func(e engine.Event) bool { return e.Kind == engine.StepDone && e.Step == step })
}

func (r *exampleRun) did(step string) {
	r.Helper()
	seen := func(e engine.Event) bool {
		return e.Step == step && (e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged)
	}
	if !slices.ContainsFunc(r.events, seen) {
		r.Errorf("%s was not done", step)
	}
}

func (r *exampleRun) inOrder(steps ...string) {
	r.Helper()
	last := -1
	for _, s := range steps {
		if at := r.at(s); at <= last {
			r.Errorf("%s was event %d, and the one before it %d", s, at, last)
		} else {
			last = at
		}
	}
}

func (r *exampleRun) pin(name string) {
	r.Helper()
	svc := r.get(name)
	svc.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin}
	r.must(server.Update(r.Context(), svc))
}

// hooks gives the programs and URLs of the example somewhere to go, and has one run stopped by them
// first.
func (r *exampleRun) hooks() {
	r.Helper()
	dir := r.TempDir()
	web := httptest.NewServer(r.posted)
	r.Cleanup(web.Close)
	r.Setenv("SLACK_URL", web.URL+"/slack")
	r.Setenv("CHANGES_URL", web.URL+"/changes")
	r.Setenv("MOVED_LOG", filepath.Join(dir, "moved.log"))
	stop := filepath.Join(dir, "stop")
	r.Setenv("STOP_FILE", stop)
	r.must(os.WriteFile(stop, nil, 0o600))
	_, err := r.job.Apply(r.Context(), r.runner)
	if said := fault.Private(err); said != stop+" exists" {
		r.Errorf("the run was to be stopped by its hook: %v: %s", err, said)
	}
	r.isAt("shop", "cart", "10.96.3.7")
	r.must(os.Remove(stop))
}

// playbook plays ansible: API servers have their certificates once it was called with both
// addresses.
func (r *exampleRun) playbook() {
	r.Helper()
	dir := r.TempDir()
	log := filepath.Join(dir, "log")
	script := "#!/bin/sh\necho \"$*\" >> " + log + "\n"
	r.must(os.WriteFile(filepath.Join(dir, "ansible-playbook"), []byte(script), 0o700))
	r.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r.Setenv("INVENTORY", "production")
	web := httptest.NewServer(r.posted)
	r.Cleanup(web.Close)
	r.Setenv("KUBELETS_URL", web.URL+"/kubelets")
	r.servers.renewed = func() bool {
		said, err := os.ReadFile(log)
		const want = "-i production api-server-certificates.yml -e new_address=172.24.0.1 -e old_address=10.96.0.1\n"
		return err == nil && string(said) == want
	}
}

func (r *exampleRun) wasTold() {
	r.Helper()
	log, err := os.ReadFile(os.Getenv("MOVED_LOG"))
	r.must(err)
	if !strings.Contains(string(log), "apply default 1: shop/cart shop/pay staging/trial") {
		r.Errorf("logged %q", log)
	}
	for _, want := range []string{
		`"hook":"open-change"`, `"hook":"close-change"`, `/slack {"text":"replumb told: `,
	} {
		if !r.posted.has(want) {
			r.Errorf("there is no post of %s", want)
		}
	}
}

// errNotYet says that something is still to come.
var errNotYet = engine.NotYet("not yet")
