package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
	"github.com/replumb/replumb/internal/answer"
	"github.com/replumb/replumb/internal/apitest"
	"github.com/replumb/replumb/internal/cluster"
)

// The Services' addresses are the machine's own, so that tests can answer at them.
const serviceRange = "127.64.0.0/16"

var shared = apitest.Lazy{Range: serviceRange, Options: []apitest.Option{apitest.Unsafe(), apitest.WithoutEndpoints()}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// fixture is a cluster with a Migration in it, and the rights and the token that agents have.
type fixture struct {
	*testing.T
	*apitest.Server
	dir string
}

func newFixture(t *testing.T) *fixture {
	s := shared.Get(t)
	s.Clean(t)
	s.Namespace(t, v1alpha1.SystemNamespace)
	s.Namespace(t, "shop")
	f := &fixture{T: t, Server: s, dir: t.TempDir()}
	f.must(s.InstallCRD(t.Context()))
	crd := &apiextensionsv1.CustomResourceDefinition{}
	f.must(yaml.UnmarshalStrict(crds.NodeReports, crd))
	f.must(client.IgnoreAlreadyExists(s.Create(t.Context(), crd)))
	f.until("the definitions are served", func() bool {
		return s.List(t.Context(), &v1alpha1.NodeReportList{}) == nil && s.List(t.Context(), &v1alpha1.MigrationList{}) == nil
	})
	f.must(s.DeleteAllOf(t.Context(), &v1alpha1.NodeReport{}))
	f.must(s.Create(t.Context(), &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			ServiceCIDR: &v1alpha1.ServiceCIDRSpec{From: []string{serviceRange}, To: []string{"172.24.0.0/16"}},
			Proof:       v1alpha1.ProofSpec{Rate: 10},
		},
	}))
	f.grant()
	return f
}

// grant gives agents what they need and nothing else, and writes down what kubelet would.
func (f *fixture) grant() {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "agent"}}
	f.must(client.IgnoreAlreadyExists(f.Create(f.Context(), account)))
	look := []string{"list", "watch"}
	rights := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "pods"}, Verbs: look},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"migrations"}, Verbs: look},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nodereports"}, Verbs: []string{"create", "patch"}},
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"nodereports/status"}, Verbs: []string{"patch"}},
	}}
	f.must(client.IgnoreAlreadyExists(f.Create(f.Context(), rights)))
	f.must(client.IgnoreAlreadyExists(f.Create(f.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "agent"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: v1alpha1.SystemNamespace, Name: "agent"}},
	})))
	request := &authenticationv1.TokenRequest{}
	config := f.Config
	admin, err := client.New(config, client.Options{})
	f.must(err)
	f.must(admin.SubResource("token").Create(f.Context(), account, request))
	f.must(os.WriteFile(filepath.Join(f.dir, "token"), []byte(request.Status.Token), 0o600))
	f.must(os.WriteFile(filepath.Join(f.dir, "ca.crt"), config.CAData, 0o600))
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) until(what string, is func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), 20*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		f.Fatalf("never: %s; report:\n%s", what, f.text())
	}
}

func (f *fixture) text() string {
	r := &v1alpha1.NodeReport{}
	if err := f.Get(context.Background(), client.ObjectKey{Name: "node-a"}, r); err != nil {
		return err.Error()
	}
	body, _ := yaml.Marshal(r.Status)
	return string(body)
}

// report waits until the report of the node is as it should be.
func (f *fixture) report(what string, is func(v1alpha1.NodeReportStatus) bool) v1alpha1.NodeReportStatus {
	f.Helper()
	r := &v1alpha1.NodeReport{}
	f.until(what, func() bool {
		return f.Get(f.Context(), client.ObjectKey{Name: "node-a"}, r) == nil && is(r.Status)
	})
	return r.Status
}

// start runs an agent. The returned function ends it.
func (f *fixture) start(origin v1alpha1.ProbeOrigin, instance string, change ...func(*Agent)) (end func()) {
	f.Helper()
	// The first endpoint is one that nobody listens at.
	c, err := cluster.Connect(Config([]string{"127.0.0.1:1", strings.Trim(strings.TrimPrefix(f.Config.Host, "https:"), "/")}, f.dir))
	f.must(err)
	a := &Agent{
		Client: c, Origin: origin, Migration: "m", Node: "node-a", NodeIP: netip.MustParseAddr("127.0.0.1"), Instance: instance,
		Version: "v1", Interval: time.Hour, Log: func(err error) { fmt.Fprintln(f.Output(), err) },
	}
	for _, ch := range change {
		ch(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(end)
	return end
}

func entry(st v1alpha1.NodeReportStatus, name string) *v1alpha1.ProbeReport {
	i := slices.IndexFunc(st.Probes, func(p v1alpha1.ProbeReport) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &st.Probes[i]
}

func sentTo(name string, more int64) func(v1alpha1.NodeReportStatus) bool {
	return func(st v1alpha1.NodeReportStatus) bool { p := entry(st, name); return p != nil && p.Sent > more }
}

func often(a *Agent) { a.Interval = 200 * time.Millisecond }

// healthPort plays the health-check server of kube-proxy.
type healthPort struct {
	listener net.Listener
	answer   atomic.Pointer[string]
	asked    atomic.Int64
}

func (f *fixture) kubeProxy() *healthPort {
	f.Helper()
	// One that is free, in the range of node ports.
	var h healthPort
	var err error
	for port := 30100; port < 32700; port++ {
		if h.listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			break
		}
	}
	f.must(err)
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.asked.Add(1)
		if text := h.answer.Load(); text != nil {
			_, _ = fmt.Fprint(w, *text)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})}
	go func() { _ = server.Serve(h.listener) }()
	f.Cleanup(func() { _ = server.Close() })
	return &h
}

func (h *healthPort) says(namespace, name string, local int) {
	text := fmt.Sprintf(`{"service":{"namespace":%q,"name":%q},"localEndpoints":%d}`, namespace, name, local)
	h.answer.Store(&text)
}

func (h *healthPort) port() int32 { return int32(h.listener.Addr().(*net.TCPAddr).Port) } //nolint:gosec // a port

func (f *fixture) sentinel(port int32) *corev1.Service {
	f.Helper()
	class, no := v1alpha1.LoadBalancerClass, false
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "barrier-",
			Labels: map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleSentinel},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: &no,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: port,
			Ports: []corev1.ServicePort{{Port: 9}},
		},
	}
	f.must(f.Create(f.Context(), svc))
	return svc
}

func TestBarrierIsPassed(t *testing.T) {
	f := newFixture(t)
	h := f.kubeProxy()
	h.says("shop", "other", 1)
	f.start(v1alpha1.FromHost, "uid-1")
	st := f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return len(st.Agents) == 1 })
	if st.Barrier != nil || st.Agents[0].Instance != "uid-1" || st.Agents[0].Version != "v1" {
		t.Errorf("first report: %+v", st)
	}
	s := f.sentinel(h.port())
	f.until("kube-proxy is asked", func() bool { return h.asked.Load() > 2 })
	h.says(s.Namespace, s.Name, 0)
	asked := h.asked.Load()
	f.until("kube-proxy is asked again", func() bool { return h.asked.Load() > asked+1 })
	if st := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true }); st.Barrier != nil {
		t.Fatalf("passed without an endpoint: %+v", st.Barrier)
	}
	h.says(s.Namespace, s.Name, 1)
	passed := func(uid string) func(v1alpha1.NodeReportStatus) bool {
		return func(st v1alpha1.NodeReportStatus) bool { return st.Barrier != nil && st.Barrier.Sentinel == uid }
	}
	f.report("the barrier is passed", passed(string(s.UID)))
	f.must(f.Delete(f.Context(), s))
	h.answer.Store(nil)
	second := f.sentinel(h.port())
	h.says(second.Namespace, second.Name, 1)
	f.report("the next barrier is passed", passed(string(second.UID)))
}

// target has a probe of the Migration's own go to an address.
func (f *fixture) target(kind v1alpha1.RequestKind, address string) {
	f.Helper()
	f.change(func(m *v1alpha1.Migration) {
		m.Spec.Proof.Probes = []v1alpha1.ProbeSpec{{Name: "shop", Kind: kind, Address: address}}
	})
}

func (f *fixture) change(change func(*v1alpha1.Migration)) {
	f.Helper()
	m := &v1alpha1.Migration{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "m"}, m))
	patch := client.MergeFrom(m.DeepCopy())
	change(m)
	f.must(f.Patch(f.Context(), m, patch))
}

// answers runs what agents call, at an address, until it is stopped.
func (f *fixture) answers(at string) (stop func()) {
	f.Helper()
	s := &answer.Server{Name: "probe"}
	f.must(s.Listen(f.Context(), net.JoinHostPort(at, "80"), net.JoinHostPort(at, "7"), net.JoinHostPort(at, "7")))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(stop)
	return stop
}

func TestLossIsReportedAtOnce(t *testing.T) {
	f := newFixture(t)
	stop := f.answers("127.64.7.1")
	f.target(v1alpha1.RequestHTTP, "http://127.64.7.1/")
	f.start(v1alpha1.FromPod, "uid-1") // the next report without news is an hour away
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return len(st.Agents) == 1 })
	began := time.Now()
	stop()
	st := f.report("a loss", func(st v1alpha1.NodeReportStatus) bool { p := entry(st, "pod/shop"); return p != nil && p.Failed > 0 })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("told after %s", took)
	}
	p := entry(st, "pod/shop")
	if len(p.Losses) != 1 || p.Losses[0].Failed != int(p.Failed) || !strings.Contains(p.Losses[0].Error, "refused") ||
		p.Instance != "uid-1" || p.Kind != v1alpha1.RequestHTTP || p.Address != "http://127.64.7.1/" {
		t.Errorf("entry %+v", p)
	}
	f.answers("127.64.7.1")
}

// TestRestartedAgentGoesOn has an agent end and another one follow: it counts anew, beside the other network's agent.
func TestRestartedAgentGoesOn(t *testing.T) {
	f := newFixture(t)
	f.answers("127.64.7.2")
	f.target(v1alpha1.RequestTCP, "127.64.7.2:80")
	end := f.start(v1alpha1.FromHost, "uid-1", often)
	f.start(v1alpha1.FromPod, "uid-2", often)
	f.report("both probe", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("host/shop", 15)(st) && sentTo("pod/shop", 15)(st) && len(st.Agents) == 2
	})
	end()
	st := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true })
	if p := entry(st, "host/shop"); p.Failed != 0 || p.Sent != sentIn(p.Recent) {
		t.Errorf("the last word is %+v", p)
	}
	f.start(v1alpha1.FromHost, "uid-3", often)
	st = f.report("the new one probes", func(st v1alpha1.NodeReportStatus) bool {
		p := entry(st, "host/shop")
		return p != nil && p.Instance == "uid-3" && p.Sent > 15
	})
	for _, p := range st.Probes {
		if p.Failed != 0 || len(p.Recent) == 0 || p.Recent[0].Latency == "" {
			t.Errorf("entry %+v", p)
		}
	}
	r := &v1alpha1.NodeReport{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "node-a"}, r))
	if r.Labels[v1alpha1.LabelMigration] != "m" || len(r.Status.Agents) != 2 {
		t.Errorf("report %+v", r)
	}
	var managers []string
	for _, m := range r.ManagedFields {
		managers = append(managers, m.Manager+m.Subresource)
	}
	for _, m := range []string{"replumb-agent-hoststatus", "replumb-agent-podstatus"} {
		if !slices.Contains(managers, m) {
			t.Errorf("managers are %v, without %s", managers, m)
		}
	}
}

func sentIn(recent []v1alpha1.ProbeWindow) (n int64) {
	for _, w := range recent {
		n += int64(w.Sent)
	}
	return n
}

// TestAgentOutlivesItsAPIServer goes on probing meanwhile, tells what happened after, and hears what is new.
func TestAgentOutlivesItsAPIServer(t *testing.T) {
	f := newFixture(t)
	stop := f.answers("127.64.7.3")
	f.target(v1alpha1.RequestHTTP, "http://127.64.7.3/")
	h := f.kubeProxy()
	f.start(v1alpha1.FromHost, "uid-1", often)
	f.report("it probes", sentTo("host/shop", 10))
	f.must(f.Restart(func() error { stop(); f.answers("127.64.7.3"); return nil }))
	f.until("the API server is ready", func() bool { return f.List(f.Context(), &v1alpha1.NodeReportList{}) == nil })
	before := f.report("any", func(v1alpha1.NodeReportStatus) bool { return true })
	st := f.report("it reports again", func(st v1alpha1.NodeReportStatus) bool {
		return st.Agents[0].Sequence > before.Agents[0].Sequence+1 && len(entry(st, "host/shop").Recent) > 1
	})
	p := entry(st, "host/shop")
	for i := 1; i < len(p.Recent); i++ {
		if p.Recent[i].Start != p.Recent[i-1].End {
			t.Errorf("a hole in %+v", p.Recent)
		}
	}
	if p.Instance != "uid-1" {
		t.Errorf("instance %s", p.Instance)
	}
	s := f.sentinel(h.port())
	h.says(s.Namespace, s.Name, 1)
	f.report("a barrier made since is passed", func(st v1alpha1.NodeReportStatus) bool {
		return st.Barrier != nil && st.Barrier.Sentinel == string(s.UID)
	})
	f.report("nothing is wrong", func(st v1alpha1.NodeReportStatus) bool { return !strings.Contains(st.Agents[0].Problem, "watching") })
}

// theProbe makes the Service probe at an address.
func (f *fixture) theProbe(at string) *corev1.Service {
	f.Helper()
	svc := theProbe(at)
	svc.UID = ""
	svc.Labels[v1alpha1.LabelMigration] = "m"
	f.must(f.Create(f.Context(), svc))
	return svc
}

// TestServiceProbeMoves follows the agents' own probes from before the move to past the point of no return, where the old
// address ends without a loss.
func TestServiceProbeMoves(t *testing.T) {
	f := newFixture(t)
	stopOld := f.answers("127.64.8.1")
	f.answers("127.64.8.2")
	svc := f.theProbe("127.64.8.1")
	f.start(v1alpha1.FromPod, "uid-1", often)
	st := f.report("the old address is probed", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("pod/old-address", 10)(st) && sentTo("pod/udp", 10)(st) && sentTo("pod/stream", 10)(st)
	})
	if !strings.Contains(st.Agents[0].Problem, "the name of service replumb-system/probe was not found yet") || entry(st, "pod/name") != nil {
		t.Errorf("no cluster DNS here, and the problem is %q", st.Agents[0].Problem)
	}
	f.must(f.Delete(f.Context(), svc))
	moved := theProbe("127.64.8.2", movedAt(time.Now().UTC().Format(time.RFC3339Nano)))
	moved.UID = ""
	moved.Annotations[v1alpha1.AnnotationOldIP], moved.Annotations[v1alpha1.AnnotationTargetIP] = "127.64.8.1", "127.64.8.2"
	f.must(f.Create(f.Context(), moved))
	st = f.report("both are probed", func(st v1alpha1.NodeReportStatus) bool {
		return sentTo("pod/old-address", 40)(st) && sentTo("pod/new-address", 20)(st)
	})
	if p := entry(st, "pod/stream"); p.Address != "127.64.8.1:7" {
		t.Errorf("stream goes to %s", p.Address)
	}
	m := &v1alpha1.Migration{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "m"}, m))
	m.Status.PointOfNoReturnPassed = true
	f.must(f.Status().Update(f.Context(), m))
	f.report("stream and datagrams go to the new address", func(st v1alpha1.NodeReportStatus) bool {
		return entry(st, "pod/stream").Address == "127.64.8.2:7" && entry(st, "pod/udp").Address == "127.64.8.2:7"
	})
	stopOld()
	st = f.report("the old address is told of no more", func(st v1alpha1.NodeReportStatus) bool { return entry(st, "pod/old-address") == nil })
	sent := entry(st, "pod/new-address").Sent
	st = f.report("the new one goes on", sentTo("pod/new-address", sent+10))
	for _, p := range st.Probes {
		if p.Failed > 0 {
			t.Errorf("lost %+v", p)
		}
	}
}

// hop is one Service with its bridge, that moves as the migration has Services move.
type hop struct {
	*fixture
	svc      *corev1.Service
	old, new string
}

func (f *fixture) bridged(name, from, to string) *hop {
	f.Helper()
	h := &hop{fixture: f, svc: service("shop", name, from), old: from, new: to}
	h.svc.UID = ""
	f.must(f.Create(f.Context(), h.svc))
	b := service("shop", name+"-bridge", "", role(v1alpha1.RoleBridge))
	b.UID, b.Spec.Type = "", corev1.ServiceTypeClusterIP
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(h.svc.UID)
	b.Annotations[v1alpha1.AnnotationOldIP], b.Annotations[v1alpha1.AnnotationTargetIP] = from, to
	f.must(f.Create(f.Context(), b))
	return h
}

func (h *hop) move() {
	h.Helper()
	patch := client.MergeFrom(h.svc.DeepCopy())
	touched(h.svc)
	h.svc.Annotations[v1alpha1.AnnotationOldIP], h.svc.Annotations[v1alpha1.AnnotationTargetIP] = h.old, h.new
	s := &h.svc.Spec
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeExternalName, "bridge.example", "", nil
	s.IPFamilies, s.IPFamilyPolicy, s.InternalTrafficPolicy = nil, nil, nil
	h.must(h.Patch(h.Context(), h.svc, patch))
	patch = client.MergeFrom(h.svc.DeepCopy())
	h.svc.Annotations[v1alpha1.AnnotationMovedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeClusterIP, "", h.new, []string{h.new}
	h.must(h.Patch(h.Context(), h.svc, patch))
}

// TestMovedServicesAreConnectedTo has one Service that answers wherever it should, one whose bridge does not, and one that never did.
func TestMovedServicesAreConnectedTo(t *testing.T) {
	f := newFixture(t)
	for _, at := range []string{"127.64.9.1", "127.64.9.2", "127.64.9.3"} {
		f.answers(at)
	}
	stop := f.answers("127.64.9.9")
	flows := &fakeFlows{}
	f.start(v1alpha1.FromHost, "uid-1", func(a *Agent) { a.Flows = flows })
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return st.Connects != nil })
	good := f.bridged("good", "127.64.9.1", "127.64.9.2")
	bad := f.bridged("bad", "127.64.9.9", "127.64.9.3")
	dead := f.bridged("dead", "127.64.9.7", "127.64.9.8")
	f.until("baselines", func() bool { return flows.told("127.64.9.1:80") && flows.told("127.64.9.9:80") })
	stop()
	good.move()
	bad.move()
	dead.move()
	st := f.report("all are connected to", func(st v1alpha1.NodeReportStatus) bool { return st.Connects.Connected == 3 })
	if c := st.Connects; len(c.Failed) != 1 || c.Failed[0].Service != "shop/bad" || c.Failed[0].Address != "127.64.9.9:80" || c.Instance != "uid-1" {
		t.Errorf("connects %+v", c)
	}
	if !flows.told("127.64.9.2:80") {
		t.Errorf("flows of the agent's own: %v", flows.own)
	}
}

// fakeFlows stands in for connection tracking.
type fakeFlows struct {
	mu    sync.Mutex
	own   []string
	moved []map[netip.Addr]string
	pods  []map[netip.Addr]string
	list  []v1alpha1.OldAddressClient
	err   error
}

func (f *fakeFlows) Clients(moved, pods map[netip.Addr]string) ([]v1alpha1.OldAddressClient, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moved, f.pods = append(f.moved, moved), append(f.pods, pods)
	return f.list, f.err
}

func (f *fakeFlows) Own(_ string, _, remote netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = append(f.own, remote.String())
}

func (f *fakeFlows) told(remote string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.own, remote)
}

func TestClientsOfOldAddresses(t *testing.T) {
	pod := func(namespace, name, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
		change(p)
		return p
	}
	svc, b := service("shop", "cart", newAt, movedAt("1")), service("shop", "cart-bridge", "10.96.9.9", role(v1alpha1.RoleBridge), touched)
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(svc.UID)
	s := scene{migration: migration(), services: []*corev1.Service{svc, b}, pods: []*corev1.Pod{
		pod("shop", "web", "10.0.0.1", func(*corev1.Pod) {}),
		pod("shop", "done", "10.0.0.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("kube-system", "proxy", "192.0.2.1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod(v1alpha1.SystemNamespace, "probe-x", "10.0.0.3", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelRole] = v1alpha1.RoleProbe }),
	}}
	flows := &fakeFlows{list: []v1alpha1.OldAddressClient{{Source: "10.0.0.1"}, {Source: "10.0.0.3"}, {Source: "192.0.2.1"}}}
	c := &clients{flows: flows}
	c.look(s)
	list, more, err := c.report()
	if err != nil || more != 0 || len(list) != 2 || list[0].Source != "10.0.0.1" || list[1].Source != "192.0.2.1" {
		t.Errorf("%+v, %d more, %v", list, more, err)
	}
	if fmt.Sprint(flows.moved) != "[map[10.96.0.9:shop/cart]]" || fmt.Sprint(flows.pods) != "[map[10.0.0.1:shop/web]]" {
		t.Errorf("asked for %v of %v", flows.moved, flows.pods)
	}
	flows.err, flows.list = errors.New("not permitted"), nil
	c.look(s)
	if list, _, err := c.report(); err == nil || len(list) != 2 {
		t.Errorf("%d clients, %v", len(list), err)
	}
	flows.err = nil
	for i := range 300 {
		flows.list = append(flows.list, v1alpha1.OldAddressClient{Source: fmt.Sprint(i)})
	}
	c.look(s)
	if list, more, err := c.report(); err != nil || len(list) != mostClients || more != 44 {
		t.Errorf("%d clients, %d more, %v", len(list), more, err)
	}
	s.services = nil
	c.look(s)
	if list, more, _ := c.report(); len(list)+more > 0 || len(flows.moved) != 3 {
		t.Errorf("without old addresses, %d clients", len(list)+more)
	}
}

// TestProblemsAreTold has an agent without a right, and with one that came late.
func TestProblemsAreTold(t *testing.T) {
	f := newFixture(t)
	rights := &rbacv1.ClusterRole{}
	f.must(f.Get(f.Context(), client.ObjectKey{Name: "agent"}, rights))
	whole := rights.DeepCopy()
	rights.Rules = rights.Rules[1:]
	f.must(f.Update(f.Context(), rights))
	f.Cleanup(func() {
		rights.Rules = whole.Rules
		if err := f.Server.Update(context.Background(), rights); err != nil && !apierrors.IsConflict(err) {
			f.Error(err)
		}
	})
	flows := &fakeFlows{err: errors.New("not permitted")}
	f.start(v1alpha1.FromHost, "uid-1", often, func(a *Agent) { a.Flows = flows })
	f.report("what it may not is told", func(st v1alpha1.NodeReportStatus) bool {
		return len(st.Agents) == 1 && strings.Contains(st.Agents[0].Problem, "watching services: services is forbidden")
	})
	rights.Rules = whole.Rules
	f.must(f.Update(f.Context(), rights))
	f.report("it goes on", func(st v1alpha1.NodeReportStatus) bool {
		return st.Agents[0].Problem == "there is no Service that leads to the agents' own servers"
	})
}
