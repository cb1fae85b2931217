//go:build apiserver

package nodes

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. Its controllers
// are real, its nodes are played.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

const (
	oldNetwork, newNetwork = "192.0.2.0/24", "198.51.100.0/24"
	patience               = migrationtest.Patience
)

// fixture is a cluster of two old nodes, and those who own the machines: they make new ones and end
// old ones when they are asked to.
type fixture struct {
	*migrationtest.Stage
	// operator is the cluster as a user sees it who has the roles, and no other rights.
	operator *cluster.Cluster
	requests *migrationtest.Requests
	fleet    *fakekubelet.Fleet
	job      *Job
	runner   *engine.Runner

	// idle owners do nothing, misled ones make nodes in the old network.
	idle, misled bool
	owners       sync.WaitGroup
	// ending, if set, is called before a machine ends.
	ending func(node string)
}

func sample() *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}, Nodes: &v1alpha1.NodesSpec{
			Old:      v1alpha1.NodeSet{CIDRs: []string{oldNetwork}},
			New:      v1alpha1.NodeSet{CIDRs: []string{newNetwork}},
			GateWait: &metav1.Duration{Duration: patience},
			Ingress:  v1alpha1.IngressSpec{Settle: &metav1.Duration{Duration: 100 * time.Millisecond}},
			Drain:    v1alpha1.NodeDrainSpec{Timeout: &metav1.Duration{Duration: patience}},
		}},
	}
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	server.Namespace(t, "shop")
	f := &fixture{Stage: migrationtest.New(t, server)}
	f.fleet = &fakekubelet.Fleet{Client: server, Phase: phaseOf, Addresses: &fakekubelet.Blocks{Client: server}}
	f.node("a", "192.0.2.1")
	f.node("b", "192.0.2.2")
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = map[string]any{"cidr": "10.244.0.0/24", "blockSize": int64(28), "natOutgoing": true}
	f.Must(server.Create(t.Context(), pool))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.fleet.Run(ctx) }()
	t.Cleanup(func() { f.owners.Wait(); clean(t); stop(); <-ended }) // pods need their kubelets to end
	m := sample()
	for _, c := range change {
		c(m)
	}
	f.operator, f.requests = migrationtest.Operator(t, server, append(Roles(), migration.RolesFor(m)...))
	f.with(m)
	f.runner = &engine.Runner{Sink: f.take, Deadline: patience}
	return f
}

// with makes the job of a Migration.
func (f *fixture) with(m *v1alpha1.Migration) {
	f.Helper()
	job, err := NewJob(migration.Deps{Cluster: crash.Watch(f.T, f.operator), Image: pull.Image{Name: "replumb"}}, m)
	f.Must(err)
	job.Holder = migrationtest.Killed()
	f.job = job
}

// phaseOf has pods that call be done at once.
func phaseOf(pod *corev1.Pod) corev1.PodPhase {
	if pod.Labels[connectivity.Label] == "call" {
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

func (f *fixture) node(name, address string) {
	f.Helper()
	f.Must(f.fleet.Node(f.Context(), name, netip.MustParseAddr(address)))
}

// take hears what a run says.
func (f *fixture) take(e engine.Event) {
	f.Hear(e, func() { f.own(e) })
}

// own does what a run asks those for who own the machines.
func (f *fixture) own(e engine.Event) {
	if e.Guide != "" && e.Role != engine.RoleGate {
		f.Errorf("step %s has instructions and the role %s", e.Step, e.Role)
	}
	if e.Guide == "" || f.idle {
		return
	}
	network := "198.51.100."
	if f.misled {
		network = "192.0.2.10"
	}
	f.owners.Go(func() {
		ctx := context.WithoutCancel(f.Context())
		name, ends := strings.CutPrefix(e.Step, "terminate/")
		switch {
		case ends:
			if f.ending != nil {
				f.ending(name)
			}
			_ = server.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		case e.Step == "join":
			_ = f.fleet.Node(ctx, "c", netip.MustParseAddr(network+"1")) // it may be there from an earlier run
			_ = f.fleet.Node(ctx, "d", netip.MustParseAddr(network+"2"))
		}
	})
}

// clean removes what tests make, workloads before their pods and pods before their nodes.
func clean(t *testing.T) {
	t.Helper()
	kinds := func(kind string) client.ObjectList {
		l := calico.Empty(kind, "")
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(l.GroupVersionKind().GroupVersion().WithKind(kind + "List"))
		return list
	}
	migrationtest.Clear(t, server,
		&policyv1.PodDisruptionBudgetList{}, &batchv1.JobList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{},
		&appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, kinds("IPPool"), kinds("IPAMBlock"), kinds("BlockAffinity"),
		kinds("IPAMHandle"), &corev1.NodeList{},
	)
	server.Clean(t)
}

// edge is a Service that only nodes with a pod of the app answer for from outside.
func (f *fixture) edge(app string) *corev1.Service {
	f.Helper()
	svc := &corev1.Service{ObjectMeta: migrationtest.Named(app), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": app}, LoadBalancerClass: ptr.To("example.com/none"),
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	f.Must(server.Create(f.Context(), svc))
	return svc
}

// ready are the ready pods of an app, by name, and where they are.
func (f *fixture) ready(app string) map[string]string {
	f.Helper()
	out := map[string]string{}
	for _, p := range f.Ready(app) {
		out[p.Name] = p.Spec.NodeName
	}
	return out
}

// on fails unless all n ready pods of an app are on some of the nodes.
func (f *fixture) on(nodes, app string, n int) {
	f.Helper()
	all := f.ready(app)
	for pod, node := range all {
		if !strings.Contains(nodes, node) {
			f.Errorf("pod %s is on node %s, want one of %s", pod, node, nodes)
		}
	}
	if len(all) != n {
		f.Errorf("%s has %d ready pods, want %d", app, len(all), n)
	}
}

// nodes are the names of those there are.
func (f *fixture) nodes() string {
	f.Helper()
	all := &corev1.NodeList{}
	f.Must(server.List(f.Context(), all))
	var out []string
	for i := range all.Items {
		name := all.Items[i].Name
		if t := taintOf(&all.Items[i]); t != nil {
			name += ":" + string(t.Effect)
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (f *fixture) apply() error {
	_, err := f.job.Apply(f.Context(), f.runner)
	return err
}

// again is what a new process with the same command begins with: the Migration as the cluster has
// it.
func (f *fixture) again() v1alpha1.MigrationStatus {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.Must(err)
	if m == nil {
		f.Fatal("there is no Migration")
	}
	f.job.Migration = m
	return m.Status
}

func (f *fixture) finish() error   { f.again(); return f.job.Finish(f.Context(), f.runner) }
func (f *fixture) rollback() error { f.again(); return f.job.Rollback(f.Context(), f.runner) }
