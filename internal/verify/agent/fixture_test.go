//go:build apiserver && long

package agent

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/probe"
)

// The Services' addresses are the machine's own, so that tests can answer at them.
const serviceRange = "127.64.0.0/16"

var shared = apitest.Lazy{Range: serviceRange, Options: []apitest.Option{apitest.WithoutEndpoints()}}

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
		{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"ipaddresses"}, Verbs: []string{"get", "list", "watch"}},
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

// waitLimit is for machines that are busy.
const waitLimit = time.Minute

func (f *fixture) until(what string, is func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), 20*time.Millisecond, waitLimit, true,
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
	// The first endpoint is one that nothing listens at.
	config, _ := cluster.Direct([]string{"127.0.0.1:1", strings.Trim(strings.TrimPrefix(f.Config.Host, "https:"), "/")}, nil, f.dir)
	c, err := cluster.Connect(config)
	f.must(err)
	a := &Agent{
		Self:      true,
		Client:    c,
		Origin:    origin,
		Migration: "m",
		Node:      "node-a",
		NodeIPs:   []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Instance:  instance,
		Version:   "v1",
		Interval:  time.Hour,
		Ranges:    []netip.Prefix{netip.MustParsePrefix(serviceRange), netip.MustParsePrefix("172.24.0.0/16")},
		Log:       func(err error) { fmt.Fprintln(f.Output(), err) },
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
	for port := 30100; port < 32700; port++ { // two of a test find different ones
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

func (h *healthPort) port() int32 { return int32(h.listener.Addr().(*net.TCPAddr).Port) }

func (f *fixture) sentinel(port int32) *corev1.Service {
	f.Helper()
	return f.sentinelIn(v1alpha1.SystemNamespace, port)
}

func (f *fixture) sentinelIn(namespace string, port int32) *corev1.Service {
	f.Helper()
	class, no := v1alpha1.LoadBalancerClass, false
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, GenerateName: "barrier-",
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
	s := &echoserver.Server{Identity: probe.EchoIdentity{Name: "probe"}}
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
