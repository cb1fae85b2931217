//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. server is what it
// started.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16"}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// proxies play the kube-proxies of all nodes: they answer for a sentinel that exists.
type proxies struct {
	mu    sync.Mutex
	deaf  map[string]bool
	asked int
}

func (p *proxies) Ask(ctx context.Context, node string, port int32) ([]byte, error) {
	p.mu.Lock()
	p.asked++
	deaf := p.deaf[node]
	p.mu.Unlock()
	if deaf {
		return nil, errors.New("503")
	}
	all := &corev1.ServiceList{}
	if err := server.List(ctx, all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSentinel}); err != nil {
		return nil, err
	}
	for _, s := range all.Items {
		if s.Spec.HealthCheckNodePort == port {
			return fmt.Appendf(nil, `{"service":{"namespace":%q,"name":%q},"localEndpoints":1}`, s.Namespace, s.Name), nil
		}
	}
	return nil, errors.New("connection refused")
}

type fixture struct {
	*testing.T
	job    *Job
	probe  *proxies
	runner *engine.Runner
	events []engine.Event
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	return setupOn(t, lazy.Get(t), change...)
}

// setupOn is setup on an API server of the test's own.
func setupOn(t *testing.T, on *apitest.Server, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = on
	server.Clean(t)
	server.Namespace(t, "shop")
	m := sample()
	for _, c := range change {
		c(m)
	}
	f := &fixture{T: t, probe: &proxies{}}
	job, err := NewJob(
		Deps{Deps: migration.Deps{Cluster: crash.Watch(t, server.Cluster)}, Probe: f.probe, Inspector: apiserver.New(server.Config)},
		m,
	)
	if err != nil {
		t.Fatal(err)
	}
	job.Holder = migrationtest.Killed()
	f.job = job
	f.runner = &engine.Runner{Sink: func(e engine.Event) { f.events = append(f.events, e) }, Deadline: 10 * time.Second}
	return f
}

func (f *fixture) service(name string, change ...func(*corev1.Service)) *corev1.Service {
	f.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(5353)},
			},
			SessionAffinity: corev1.ServiceAffinityClientIP,
		},
	}
	for _, c := range change {
		c(svc)
	}
	f.must(server.Create(f.Context(), svc))
	return svc
}

func at(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ClusterIP = ip }
}

func (f *fixture) pod(name, app, ip string) {
	f.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	f.must(server.Create(f.Context(), p))
	p.Status.PodIP, p.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	f.must(server.Status().Update(f.Context(), p))
}

func (f *fixture) node(name, ip string) {
	f.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	f.must(server.Create(f.Context(), n))
	n.Status.Addresses = []corev1.NodeAddress{
		// An API server asks a kubelet there first, and refuses at once: otherwise every look would
		// wait for its time-out.
		{Type: corev1.NodeHostName, Address: "localhost"},
		{Type: corev1.NodeInternalIP, Address: ip},
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	f.must(server.Status().Update(f.Context(), n))
}

func (f *fixture) get(name string) *corev1.Service {
	f.Helper()
	svc := &corev1.Service{}
	f.must(server.Get(f.Context(), client.ObjectKey{Namespace: "shop", Name: name}, svc))
	return svc
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) apply() *services.Inventory {
	f.Helper()
	p, err := f.job.Apply(f.Context(), f.runner)
	f.must(err)
	m, err := migration.Get(f.Context(), server, "m")
	f.must(err)
	f.job.Migration = m
	return p.Inventory
}

// owner names what the API server gave an address to.
func (f *fixture) owner(ip string) string {
	f.Helper()
	a := &networkingv1.IPAddress{}
	err := server.Get(f.Context(), client.ObjectKey{Name: ip}, a)
	if apierrors.IsNotFound(err) {
		return ""
	}
	f.must(err)
	return bridge.ParentOf(a)
}

// sameButAddress compares every field of two specs but the address.
func (f *fixture) sameButAddress(was, is *corev1.Service) {
	f.Helper()
	a, b := was.Spec.DeepCopy(), is.Spec.DeepCopy()
	a.ClusterIP, a.ClusterIPs, b.ClusterIP, b.ClusterIPs = "", nil, "", nil
	if !equality.Semantic.DeepEqual(a, b) || was.UID != is.UID {
		f.Errorf("service %s was\n%+v\nis\n%+v", was.Name, a, b)
	}
}

// answers are where the bridge of a Service answers.
func (f *fixture) answers(of *corev1.Service) string {
	f.Helper()
	b := f.get(bridge.Name(of.Name, of.UID))
	all := slices.Clone(b.Spec.ExternalIPs)
	for _, i := range b.Status.LoadBalancer.Ingress {
		all = append(all, i.IP)
	}
	return strings.Join(all, " ")
}

// checkBridge looks at the bridge of a Service that has moved.
func (f *fixture) checkBridge(was, is *corev1.Service, form v1alpha1.BridgeForm) {
	f.Helper()
	b := f.get(bridge.Name(was.Name, was.UID))
	if got := f.answers(was); got != was.Spec.ClusterIP || bridge.FormOf(b) != form {
		f.Errorf("bridge of %s, of form %s, answers on %s; want %s", was.Name, bridge.FormOf(b), got, was.Spec.ClusterIP)
	}
	if was.Spec.ClusterIP == is.Spec.ClusterIP {
		f.Errorf("%s is still at %s", was.Name, is.Spec.ClusterIP)
	}
	if !strings.HasPrefix(b.Spec.ClusterIP, "172.24.255.") || b.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		f.Errorf("bridge of %s is at %s with %s", was.Name, b.Spec.ClusterIP, b.Spec.ExternalTrafficPolicy)
	}
	for _, p := range b.Spec.Ports {
		if p.NodePort != 0 {
			f.Errorf("bridge of %s has node port %d", was.Name, p.NodePort)
		}
	}
	if got, want := f.heldFor(was.Spec.ClusterIP), "shop/"+b.Name; got != want {
		f.Errorf("old address %s is held for %q, want %q", was.Spec.ClusterIP, got, want)
	}
}

// heldFor names the bridge that an address is held for, or that its Service would have.
func (f *fixture) heldFor(ip string) string {
	f.Helper()
	a := &networkingv1.IPAddress{}
	f.must(server.Get(f.Context(), client.ObjectKey{Name: ip}, a))
	key, _ := bridge.HeldFor(a)
	return key.String()
}

// nothingLeft fails if an object of replumb is left, other than the Migration.
func (f *fixture) nothingLeft() {
	f.Helper()
	services, ips := &corev1.ServiceList{}, &networkingv1.IPAddressList{}
	f.must(server.List(f.Context(), services, client.HasLabels{v1alpha1.LabelRole}))
	f.must(server.List(f.Context(), ips, client.HasLabels{v1alpha1.LabelRole}))
	if len(services.Items)+len(ips.Items) > 0 {
		f.Errorf("left: services %v, addresses %v", services.Items, ips.Items)
	}
	err := server.Get(f.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		f.Errorf("namespace is left: %v", err)
	}
}

// planner examines the cluster once and prepares what the steps of a batch need.
func (f *fixture) planner() *Planner {
	f.Helper()
	p, err := f.job.Examine(f.Context())
	f.must(err)
	for _, g := range append(p.Apply().Phases[1].Groups, p.ranges().Extend()...) {
		for _, s := range g.Steps {
			f.must((&engine.Runner{}).Run(f.Context(), single1(s)))
		}
	}
	return p
}

func single1(s engine.Step) *engine.Plan {
	return &engine.Plan{Name: "one", Phases: []engine.Phase{{Name: "one", Groups: engine.InOrder(s)}}}
}

// oneWay refuses to give a Service an address: every time, or once with an error.
type oneWay struct {
	client.WithWatch
	once   error
	passes bool
}

func (o *oneWay) Patch(ctx context.Context, to client.Object, p client.Patch, opts ...client.PatchOption) error {
	body, err := p.Data(to)
	if err != nil || o.passes || !strings.Contains(string(body), `"clusterIP":"`) {
		return o.WithWatch.Patch(ctx, to, p, opts...)
	}
	if o.once != nil {
		o.passes = true
		return o.once
	}
	return crash.ErrKilled
}

// cutOff has a Service hop, by a run that is killed right after patch A.
func (f *fixture) cutOff(p *Planner, e *services.Entry) {
	f.Helper()
	whole := p.Tools.Cluster
	cut := *whole
	cut.WithWatch = &oneWay{WithWatch: whole.WithWatch}
	p.Tools.Cluster = &cut
	defer func() { p.Tools.Cluster = whole }()
	err := (&engine.Runner{}).Run(f.Context(), single1(p.steps(engine.Forward).Hop(e, engine.Forward)))
	if !errors.Is(err, crash.ErrKilled) {
		f.Fatal(err)
	}
}

func parseRanges(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
