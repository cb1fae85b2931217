//go:build apiserver && programs

package mirror

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/dnstest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Two clusters with real controllers and played nodes, for all tests of this package.
var (
	first  = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
	second = &apitest.Lazy{Range: "10.97.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
)

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, first, second))
}

// The load balancers of both clusters.
const (
	sourceAt = "127.0.0.30"
	targetAt = "127.0.0.40"
	zone     = `
shop.sub 3 IN A 127.0.0.30
blog.sub 3 IN A 127.0.0.30
`
)

// fixture is two clusters, each with a load balancer, and the zone that names are in.
type fixture struct {
	*testing.T
	source, target *apitest.Server
	// operator is the source as a user sees it who has the roles, and no other rights.
	operator *cluster.Cluster
	requests *migrationtest.Requests
	dns      *dnstest.Servers
	port     string
	events   []engine.Event
	runner   *engine.Runner
	job      *Job
	keyFile  string
	// cut is a node of the target whose pods do not reach what canaries call, asked what canaries
	// were told to do.
	cut   string
	asked []string
	// ill is a name that the target's load balancer does not serve.
	ill string
	mu  sync.Mutex
	// kill, if it is not zero, cancels the run after so many events, and killAt when that step has
	// ended.
	kill   int
	killAt string
	cancel context.CancelFunc
	// dead refuses every connection to the target.
	dead bool
	// starts is told of every step that starts, before it does anything.
	starts func(step string)
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	f := &fixture{T: t, source: first.Get(t), target: second.Get(t)}
	for _, s := range []*apitest.Server{f.source, f.target} {
		f.play(s)
	}
	f.dns = dnstest.Start(t, dnstest.Zone{Records: zone, Policy: "grant replumb subdomain sub.example.test. ANY;"})
	f.port = dnstest.FreePort(t, sourceAt, targetAt)
	f.balancer(sourceAt)
	f.balancer(targetAt)
	f.keyFile = filepath.Join(t.TempDir(), "key")
	f.must(os.WriteFile(f.keyFile, []byte(dnstest.KeyFile), 0o600))
	f.populate()
	m := f.sample()
	for _, c := range change {
		c(m)
	}
	f.operator = f.source.Cluster
	f.with(m)
	roles, err := f.job.Roles(t.Context())
	f.must(err)
	f.operator, f.requests = migrationtest.Operator(t, f.source, roles)
	f.with(m)
	f.runner = &engine.Runner{Sink: f.take, Deadline: time.Minute}
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// play gives a cluster a node, and empties it afterwards.
func (f *fixture) play(s *apitest.Server) {
	f.Helper()
	clean(f.T, s)
	fleet := &fakekubelet.Fleet{Client: s, Addresses: &fakekubelet.Counting{}, Phase: f.phaseOf, Message: f.lastWords}
	f.must(client.IgnoreAlreadyExists(fleet.Node(f.Context(), "a", netip.MustParseAddr("192.0.2.1"))))
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = map[string]any{"cidr": "10.244.0.0/16", "blockSize": int64(26)}
	eventually(f.T, "an address pool", func() error { return client.IgnoreAlreadyExists(s.Create(f.Context(), pool)) })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); fleet.Run(ctx) }()
	f.Cleanup(func() { clean(f.T, s); stop(); <-ended })
}

// phaseOf plays canaries, which have called and end.
func (f *fixture) phaseOf(pod *corev1.Pod) corev1.PodPhase {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ends := pod.Labels[batchv1.JobNameLabel]; ends {
		return corev1.PodSucceeded
	}
	if pod.Labels[connectivity.Label] != roleReach {
		return corev1.PodRunning
	}
	f.asked = pod.Spec.Containers[0].Args
	if pod.Spec.NodeName == f.cut {
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

func (f *fixture) lastWords(pod *corev1.Pod) string {
	if f.phaseOf(pod) == corev1.PodFailed {
		return "192.0.2.10:5432 does not answer: i/o timeout"
	}
	return "all answered"
}

// clean removes what tests make, namespaces last: nothing empties them here.
func clean(t *testing.T, s *apitest.Server) {
	t.Helper()
	ctx := context.Background()
	for _, o := range []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicy{},
	} {
		_ = s.DeleteAllOf(ctx, o, client.HasLabels{v1alpha1.LabelRole})
	}
	for _, ns := range []string{"shop", v1alpha1.SystemNamespace} {
		for _, o := range []client.Object{
			&appsv1.Deployment{}, &batchv1.CronJob{}, &networkingv1.Ingress{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.Secret{},
			&batchv1.Job{}, &appsv1.ReplicaSet{}, &corev1.Pod{},
		} {
			_ = s.DeleteAllOf(ctx, o, client.InNamespace(ns), client.GracePeriodSeconds(0))
		}
	}
	s.Clean(t)
}

// eventually tries something until it works: definitions are not served at once.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	var err error
	for range 100 {
		if err = do(); err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func (f *fixture) balancer(at string) {
	f.Helper()
	listener, err := new(net.ListenConfig).Listen(f.Context(), "tcp", net.JoinHostPort(at, f.port))
	f.must(err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		host, _, _ := net.SplitHostPort(r.Host)
		if at == targetAt && f.ill != "" && strings.HasPrefix(host, f.ill) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	f.Cleanup(func() { _ = server.Close() })
}

// populate makes what there is to copy.
func (f *fixture) populate() {
	f.Helper()
	f.source.Namespace(f.T, "shop")
	labels := map[string]string{"app": "web"}
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.example.com/web:1"}}},
	}
	mailer := *pod.DeepCopy()
	mailer.Labels = map[string]string{"app": "mailer"}
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}, Data: map[string]string{"a": "b"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "token"}, StringData: map[string]string{"token": "s3cr3t"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod,
		}},
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mailer", Annotations: map[string]string{v1alpha1.AnnotationRunOnce: "true"}},
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: mailer.Labels}, Template: mailer,
			},
		},
		&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nightly"}, Spec: batchv1.CronJobSpec{
			Schedule: "0 3 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: pod.Spec.Containers},
			}}},
		}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Port: 80}},
		}},
		f.ingress("shop"), f.ingress("blog"),
	} {
		// API servers let a freeze go some time after its policy.
		eventually(f.T, o.GetName(), func() error { return f.source.Create(f.Context(), o) })
	}
}

func (f *fixture) ingress(name string) *networkingv1.Ingress {
	backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: networkingv1.IngressSpec{
		Rules: []networkingv1.IngressRule{{Host: name + ".sub.example.test", IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: ptr.To(networkingv1.PathTypePrefix), Backend: backend,
			}}},
		}}},
	}}
}

func (f *fixture) sample() *v1alpha1.Migration {
	port, _ := strconv.Atoi(f.port)
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{v1alpha1.AnnotationSingletons: reviewed}},
		Spec: v1alpha1.MigrationSpec{Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}, Mirror: &v1alpha1.MirrorSpec{
			Target: v1alpha1.ClusterReference{Context: "target"},
			Copy: v1alpha1.CopySpec{
				Namespaces: v1alpha1.NameFilter{Include: []string{"shop"}},
				Registries: []v1alpha1.RegistrySwap{{From: "registry.example.com", To: "mirror.example.com"}},
			},
			GateWait: &metav1.Duration{Duration: time.Minute},
			Redirect: v1alpha1.RedirectSpec{
				From: []string{sourceAt}, To: []string{targetAt}, TTL: ptr.To[int32](1), Drain: &metav1.Duration{},
				Resolvers: []string{f.dns.Resolver},
				Probe:     v1alpha1.RedirectProbe{Mode: v1alpha1.ProbeHTTP, Port: int32(port)},
				Provider: &v1alpha1.RecordProvider{RFC2136: &v1alpha1.RFC2136Provider{
					Server: f.dns.Primary, Zone: dnstest.Name, TSIGKeyFile: f.keyFile,
				}},
			},
		}},
	}
}

// with makes the job of a Migration, as a new process does.
func (f *fixture) with(m *v1alpha1.Migration) {
	f.Helper()
	job, err := NewJob(Deps{
		Deps: migration.Deps{
			Cluster: crash.Watch(f.T, f.operator),
		},
		DNS: &dnsrecords.Client{Port: f.dns.Port, Recursive: []string{f.dns.Resolver}},
		Context: func(string) (*rest.Config, error) {
			config := rest.CopyConfig(f.target.Config)
			if f.dead {
				config.Host = "https://127.0.0.1:1"
			}
			return config, nil
		},
	}, m)
	f.must(err)
	job.Holder = migrationtest.Killed()
	f.job = job
}

// restart is what a new process does.
func (f *fixture) restart() {
	f.Helper()
	m, err := migration.Get(f.Context(), f.source, "m")
	f.must(err)
	if m == nil {
		m = f.job.Migration
	}
	f.with(m)
}

func (f *fixture) take(e engine.Event) {
	if f.starts != nil && e.Kind == engine.StepStarted {
		f.starts(e.Step)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	if testing.Verbose() && (e.Step != "" || e.Error != "") {
		f.Logf("%s %s %s %s", e.Kind, e.Step, e.Message, e.Error)
	}
	if f.kill--; f.kill == 0 || f.killAt != "" && e.Step == f.killAt && e.Kind == engine.StepDone {
		f.killAt = ""
		f.cancel()
	}
}

// run does something as a process that is killed after so many events; never, if that is zero.
func (f *fixture) run(kill int, do func(context.Context, *engine.Runner) error) error {
	f.Helper()
	f.restart()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	f.mu.Lock()
	f.kill, f.cancel, f.events = kill, cancel, nil
	f.mu.Unlock()
	return do(ctx, f.runner)
}

func (f *fixture) apply(ctx context.Context, r *engine.Runner) error {
	_, err := f.job.Apply(ctx, r)
	return err
}

func (f *fixture) status() v1alpha1.MigrationStatus {
	f.Helper()
	m, err := migration.Get(f.Context(), f.source, "m")
	f.must(err)
	return m.Status
}
