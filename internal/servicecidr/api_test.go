package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
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
	"github.com/replumb/replumb/internal/apitest"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/engine"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. server is what it started.
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

func migration() *v1alpha1.Migration {
	none := metav1.Duration{}
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}, Drain: &none},
			Batch:       v1alpha1.BatchSpec{Size: 2, Settle: &none},
		},
	}
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = lazy.Get(t)
	server.Clean(t)
	server.Namespace(t, "shop")
	m := migration()
	for _, c := range change {
		c(m)
	}
	f := &fixture{T: t, probe: &proxies{}}
	job, err := NewJob(Tools{Cluster: server.Cluster, Probe: f.probe}, m)
	if err != nil {
		t.Fatal(err)
	}
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
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
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

func (f *fixture) apply() *Survey {
	f.Helper()
	s, err := f.job.Apply(f.Context(), f.runner)
	f.must(err)
	m, err := GetMigration(f.Context(), server, "m")
	f.must(err)
	f.job.Migration = m
	return s
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

func TestMoveThereAndFinish(t *testing.T) {
	for _, form := range []v1alpha1.BridgeForm{v1alpha1.BridgeLoadBalancer, v1alpha1.BridgeExternalIPs} {
		t.Run(string(form), func(t *testing.T) {
			f := setup(t, func(m *v1alpha1.Migration) { m.Spec.ServiceCIDR.Bridge = form })
			f.node("a", "192.0.2.1")
			f.node("b", "192.0.2.2")
			was := []*corev1.Service{
				f.service("cart", at("10.96.3.7")),
				f.service("front", at("10.96.3.8")),
				f.service("pay", at("10.96.3.9")),
			}
			f.pod("cart-1", "cart", "10.244.0.4")
			headless := f.service("headless", at("None"))
			f.apply()
			for _, w := range was {
				is := f.get(w.Name)
				f.sameButAddress(w, is)
				if want := strings.Replace(w.Spec.ClusterIP, "10.96", "172.24", 1); is.Spec.ClusterIP != want {
					t.Errorf("%s is at %s, want %s", w.Name, is.Spec.ClusterIP, want)
				}
				f.checkBridge(w, is, form)
			}
			f.sameButAddress(headless, f.get("headless"))
			if f.probe.asked < 4 {
				t.Errorf("two batches on two nodes were proven by %d questions", f.probe.asked)
			}
			f.must(f.job.Finish(t.Context(), f.runner))
			for _, w := range was {
				is := f.get(w.Name)
				f.sameButAddress(w, is)
				if len(is.Annotations) != 0 || f.owner(w.Spec.ClusterIP) != "" {
					t.Errorf("%s: annotations %v and old address owned by %q are left", w.Name, is.Annotations, f.owner(w.Spec.ClusterIP))
				}
			}
			f.nothingLeft()
		})
	}
}

func (f *fixture) checkBridge(was, is *corev1.Service, form v1alpha1.BridgeForm) {
	f.Helper()
	b := f.get(bridge.Name(was.Name, was.UID))
	var answers []string
	if form == v1alpha1.BridgeExternalIPs {
		answers = b.Spec.ExternalIPs
	} else {
		for _, i := range b.Status.LoadBalancer.Ingress {
			answers = append(answers, i.IP)
		}
	}
	if want := []string{was.Spec.ClusterIP, is.Spec.ClusterIP}; strings.Join(answers, " ") != strings.Join(want, " ") {
		f.Errorf("bridge of %s answers on %v, want %v", was.Name, answers, want)
	}
	if !strings.HasPrefix(b.Spec.ClusterIP, "172.24.255.") || b.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		f.Errorf("bridge of %s is at %s with %s", was.Name, b.Spec.ClusterIP, b.Spec.ExternalTrafficPolicy)
	}
	for _, p := range b.Spec.Ports {
		if p.NodePort != 0 {
			f.Errorf("bridge of %s has node port %d", was.Name, p.NodePort)
		}
	}
	if got, want := f.owner(was.Spec.ClusterIP), "services shop/"+b.Name; got != want {
		f.Errorf("old address %s is owned by %q, want %q", was.Spec.ClusterIP, got, want)
	}
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

func TestApplyAgainChangesNothing(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	before := f.get("cart").ResourceVersion
	f.events = nil
	f.apply()
	for _, e := range f.events {
		if e.Kind == engine.StepDone {
			t.Errorf("did %s", e.Step)
		}
	}
	if f.get("cart").ResourceVersion != before {
		t.Error("the Service was written")
	}
}

func TestRollbackRestoresTheExactSpecForthAndBack(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	was := []*corev1.Service{f.service("cart"), f.service("front"), f.service("pay")}
	for range 3 {
		f.apply()
		f.must(f.job.Rollback(t.Context(), f.runner))
		for _, w := range was {
			is := f.get(w.Name)
			if !equality.Semantic.DeepEqual(w.Spec, is.Spec) || w.UID != is.UID || len(is.Annotations) != 0 {
				t.Errorf("%s was\n%+v\nis\n%+v\n%v", w.Name, w.Spec, is.Spec, is.Annotations)
			}
		}
		f.nothingLeft()
		err := server.Get(t.Context(), client.ObjectKey{Name: "m"}, &networkingv1.ServiceCIDR{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("the target range is left: %v", err)
		}
	}
}

func TestRollbackAfterFinishIsRefused(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	f.must(f.job.Finish(t.Context(), f.runner))
	m, err := GetMigration(t.Context(), server, "m")
	f.must(err)
	f.job.Migration = m
	var state *StateError
	if err := f.job.Rollback(t.Context(), f.runner); !errors.As(err, &state) {
		t.Errorf("got %v", err)
	}
}

var errKilled = errors.New("killed")

// TestKilledAfterEveryWrite cuts a run off after its first, second, third … write, and runs the same again.
func TestKilledAfterEveryWrite(t *testing.T) {
	for n := 1; ; n++ {
		f := setup(t)
		was := f.service("cart", at("10.96.3.7"))
		f.pod("cart-1", "cart", "10.244.0.4")
		killer := &killer{Client: server.Client, left: n}
		whole := f.job.Tools.Cluster
		cut := *whole
		cut.Client = killer
		f.job.Tools.Cluster = &cut
		_, err := f.job.Apply(t.Context(), f.runner)
		f.job.Tools.Cluster = whole
		if err == nil {
			if n < 12 {
				t.Fatalf("a whole run made only %d writes", n)
			}
			t.Logf("cut off after each of %d writes", n-1)
			return
		}
		if !errors.Is(err, errKilled) {
			t.Fatalf("write %d: %v", n, err)
		}
		if n%2 == 1 {
			f.apply()
			if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
				t.Errorf("write %d: at %s", n, is.Spec.ClusterIP)
			}
			f.sameButAddress(was, f.get("cart"))
		}
		if m, err := GetMigration(t.Context(), server, "m"); err == nil && m != nil {
			f.job.Migration = m
			f.must(f.job.Rollback(t.Context(), f.runner))
			if is := f.get("cart"); !equality.Semantic.DeepEqual(was.Spec, is.Spec) {
				t.Errorf("write %d: rolled back to %+v", n, is.Spec)
			}
			f.nothingLeft()
		}
	}
}

// killer lets a number of writes through, and none after them.
type killer struct {
	client.Client
	mu   sync.Mutex
	left int
}

func (k *killer) spend() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		return errKilled
	}
	k.left--
	return nil
}

func (k *killer) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	co := &client.CreateOptions{}
	co.ApplyOptions(opts)
	_, review := o.(interface{ GetGenerateName() string })
	if review && len(co.DryRun) == 0 && !strings.HasSuffix(fmt.Sprintf("%T", o), "AccessReview") {
		if err := k.spend(); err != nil {
			return err
		}
	}
	return k.Client.Create(ctx, o, opts...)
}

func (k *killer) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := k.spend(); err != nil {
		return err
	}
	return k.Client.Patch(ctx, o, p, opts...)
}

func (k *killer) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := k.spend(); err != nil {
		return err
	}
	return k.Client.Delete(ctx, o, opts...)
}

func (k *killer) Status() client.SubResourceWriter {
	return &statusKiller{SubResourceWriter: k.Client.Status(), k: k}
}

type statusKiller struct {
	client.SubResourceWriter
	k *killer
}

func (s *statusKiller) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := s.k.spend(); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, p, opts...)
}

func (s *statusKiller) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.k.spend(); err != nil {
		return err
	}
	return s.SubResourceWriter.Update(ctx, o, opts...)
}

// planner examines the cluster once and prepares what the steps of a batch need.
func (f *fixture) planner() *Planner {
	f.Helper()
	p, err := f.job.Examine(f.Context())
	f.must(err)
	for _, g := range append(p.Apply().Phases[1].Groups, p.extend()...) {
		for _, s := range g.Steps {
			f.must((&engine.Runner{}).Run(f.Context(), single1(s)))
		}
	}
	return p
}

func single1(s engine.Step) *engine.Plan {
	return &engine.Plan{Name: "one", Phases: []engine.Phase{{Name: "one", Groups: single(s)}}}
}

// TestHopRefusesWithoutABridge is the control of the most important guard: a Service must not leave its address before
// the bridge is proven.
func TestHopRefusesWithoutABridge(t *testing.T) {
	f := setup(t)
	was := f.service("cart")
	p := f.planner()
	err := p.hop(p.Survey.Moves[0]).Do(t.Context())
	var missing *bridge.MissingError
	if !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
	if is := f.get("cart"); is.ResourceVersion != was.ResourceVersion {
		t.Errorf("the Service was written: %+v", is.Spec)
	}
}

func TestHopRefusesABridgeThatDrifted(t *testing.T) {
	f := setup(t)
	was := f.service("cart")
	p := f.planner()
	e := p.Survey.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.bridge(e))))
	b := f.get(e.BridgeKey().Name)
	b.Spec.Selector = map[string]string{"app": "other"}
	f.must(server.Update(t.Context(), b))
	var drift *bridge.DriftError
	if err := p.hop(e).Do(t.Context()); !errors.As(err, &drift) || drift.Field != "selector" {
		t.Errorf("got %v", err)
	}
	if is := f.get("cart"); is.ResourceVersion != was.ResourceVersion {
		t.Error("the Service was written")
	}
}

func TestBridgeGoesToTheNextAddressWhenSomebodyTookTheTarget(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	p := f.planner()
	f.service("thief", at("172.24.3.7"))
	e := p.Survey.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.bridge(e))))
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.hop(e))))
	is := f.get("cart")
	if is.Spec.ClusterIP == "172.24.3.7" || is.Annotations[v1alpha1.AnnotationTargetIP] != is.Spec.ClusterIP {
		t.Errorf("at %s, annotations %v", is.Spec.ClusterIP, is.Annotations)
	}
}

// thief takes an address the moment replumb gives its hold back.
type thief struct {
	client.Client
	steal func()
	once  sync.Once
}

func (c *thief) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	err := c.Client.Delete(ctx, o, opts...)
	if _, ok := o.(*networkingv1.IPAddress); ok {
		c.once.Do(c.steal)
	}
	return err
}

func TestHopGoesToTheNextAddressWhenTheTargetIsTakenInTheLastMoment(t *testing.T) {
	f := setup(t)
	was := f.service("cart", at("10.96.3.7"))
	p := f.planner()
	e := p.Survey.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.bridge(e))))
	cut := *p.Tools.Cluster
	cut.Client = &thief{Client: server.Client, steal: func() { f.service("thief", at("172.24.3.7")) }}
	p.Tools.Cluster = &cut
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.hop(e))))
	is := f.get("cart")
	f.sameButAddress(was, is)
	if a := netip.MustParseAddr(is.Spec.ClusterIP); a.String() == "172.24.3.7" || !p.Survey.Spec.To[0].Contains(a) {
		t.Errorf("at %s", a)
	}
	f.checkBridge(was, is, v1alpha1.BridgeLoadBalancer)
}

// TestOldAddressIsKeptFromOthers is the control of holds: without one the API server would give the address away.
func TestOldAddressIsKeptFromOthers(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.apply()
	stranger := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "stranger"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.3.7", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := server.Create(t.Context(), stranger); !bridge.IsTaken(err) {
		t.Errorf("creating a Service at an old address: %v", err)
	}
}

func TestConflictingEditIsFollowed(t *testing.T) {
	f := setup(t)
	f.service("cart")
	p := f.planner()
	e := p.Survey.Moves[0]
	f.must((&engine.Runner{}).Run(t.Context(), single1(p.bridge(e))))
	cut := *p.Tools.Cluster
	edit := func() {
		svc := f.get("cart")
		svc.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		f.must(server.Update(context.Background(), svc))
	}
	cut.Client = &editor{Client: server.Client, edit: edit}
	p.Tools.Cluster = &cut
	err := (&engine.Runner{}).Run(t.Context(), single1(p.hop(e)))
	var drift *bridge.DriftError
	if !errors.As(err, &drift) || drift.Field != "ports" {
		t.Fatalf("after the edit the bridge is stale, and the hop must not go on: got %v", err)
	}
	p.Tools.Cluster = server.Cluster
	f.apply()
	is := f.get("cart")
	if is.Spec.Ports[0].TargetPort.IntValue() != 9090 || !strings.HasPrefix(is.Spec.ClusterIP, "172.24.") {
		t.Errorf("is %+v", is.Spec)
	}
}

// editor lets somebody else write right before the first patch.
type editor struct {
	client.Client
	edit func()
	once sync.Once
}

func (c *editor) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.once.Do(c.edit)
	return c.Client.Patch(ctx, o, p, opts...)
}

func TestEditOfAMovedServiceIsFollowedByItsBridge(t *testing.T) {
	f := setup(t)
	f.service("cart")
	f.apply()
	svc := f.get("cart")
	svc.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
	f.must(server.Update(t.Context(), svc))
	f.apply()
	if b := f.get(bridge.Name(svc.Name, svc.UID)); b.Spec.Ports[0].TargetPort.IntValue() != 9090 {
		t.Errorf("bridge has %+v", b.Spec.Ports)
	}
}

func TestDeletedServiceTakesItsBridgeAlong(t *testing.T) {
	f := setup(t)
	svc := f.service("cart")
	f.apply()
	f.must(server.Delete(t.Context(), svc))
	f.apply()
	f.must(f.job.Finish(t.Context(), f.runner))
	f.nothingLeft()
}

func TestServicesCreatedMeanwhileAreSweptUp(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	var once sync.Once
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		sink(e)
		if e.Kind == engine.PhaseDone && e.Phase == "move" {
			once.Do(func() { f.service("late", at("10.96.3.8")) })
		}
	}
	f.apply()
	if is := f.get("late"); is.Spec.ClusterIP != "172.24.3.8" {
		t.Errorf("late is at %s", is.Spec.ClusterIP)
	}
}

func TestBarrierNamesTheNodeThatHasNotAnswered(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	f.node("deaf", "192.0.2.2")
	was := f.service("cart")
	p := f.planner()
	f.probe.deaf = map[string]bool{"deaf": true}
	b := p.proof("batch 1 of 1")
	b.Limit = time.Second
	err := (&engine.Runner{}).Run(t.Context(), single1(b))
	if err == nil || !strings.Contains(err.Error(), "deaf") || strings.Contains(err.Error(), "node a,") {
		t.Errorf("got %v", err)
	}
	if is := f.get("cart"); is.ResourceVersion != was.ResourceVersion {
		t.Error("the Service was written")
	}
}
