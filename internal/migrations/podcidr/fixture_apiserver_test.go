//go:build apiserver

package podcidr

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// fixture is a cluster of two nodes with a pool, and the job.
type fixture struct {
	*migrationtest.Stage
	// operator is the cluster as a user sees it who has the roles, and no other rights.
	operator *cluster.Cluster
	requests *migrationtest.Requests
	fleet    *fakekubelet.Fleet
	job      *Job
	runner   *engine.Runner

	obstacle string // why pods with new addresses do not start
	failing  string // why canaries fail
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	server.Namespace(t, "shop")
	f := &fixture{Stage: migrationtest.New(t, server)}
	f.fleet = &fakekubelet.Fleet{Client: server, Obstacle: f.obstacleOf, Phase: f.phaseOf, Addresses: &fakekubelet.Blocks{Client: server}}
	f.Must(f.fleet.Node(t.Context(), "a", netip.MustParseAddr("192.0.2.1")))
	f.Must(f.fleet.Node(t.Context(), "b", netip.MustParseAddr("192.0.2.2")))
	f.pool("default", oldRange)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.fleet.Run(ctx) }()
	t.Cleanup(func() { clean(t); stop(); <-ended }) // pods need their kubelets to end
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
	job, err := NewJob(Deps{Cluster: crash.Watch(f.T, f.operator), Image: pull.Image{Name: "replumb"}}, m)
	f.Must(err)
	job.Holder = migrationtest.Killed()
	f.job = job
}

// clean removes what tests make, workloads before their pods.
func clean(t *testing.T) {
	t.Helper()
	migrationtest.Clear(t, server,
		&policyv1.PodDisruptionBudgetList{}, &batchv1.JobList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{},
		&appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, kinds("IPPool"), kinds("IPAMBlock"), kinds("BlockAffinity"),
		kinds("IPAMHandle"), kinds("ClusterInformation"),
	)
	server.Clean(t)
}

func kinds(kind string) client.ObjectList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(calico.GroupVersion().WithKind(kind + "List"))
	return l
}

func (f *fixture) take(e engine.Event) { f.Hear(e, nil) }

func (f *fixture) obstacleOf(pod *corev1.Pod) (reason, message string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.obstacle == "" || pod.Namespace != "shop" {
		return "", ""
	}
	return "ImagePullBackOff", f.obstacle
}

func (f *fixture) set(field *string, to string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	*field = to
}

func (f *fixture) phaseOf(pod *corev1.Pod) corev1.PodPhase {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	switch {
	case pod.Labels[connectivity.Label] == "call" && f.failing != "":
		return corev1.PodFailed
	case pod.Labels[connectivity.Label] == "call":
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

func (f *fixture) pool(name, cidr string) {
	f.Helper()
	u := calico.Empty("IPPool", name)
	u.Object["spec"] = map[string]any{"cidr": cidr, "blockSize": int64(28), "vxlanMode": "CrossSubnet", "natOutgoing": true}
	f.Must(server.Create(f.Context(), u))
}

// ready are the addresses of the ready pods of an app.
func (f *fixture) ready(app string) []netip.Addr {
	f.Helper()
	var out []netip.Addr
	for _, p := range f.Ready(app) {
		out = append(out, calico.PodAddresses(p)...)
	}
	return out
}

// in fails unless all n ready pods of an app have addresses of a range.
func (f *fixture) in(cidr, app string, n int) {
	f.Helper()
	all := f.ready(app)
	for _, a := range all {
		if !netip.MustParsePrefix(cidr).Contains(a) {
			f.Errorf("a pod of %s is at %s, want %s", app, a, cidr)
		}
	}
	if len(all) != n {
		f.Errorf("%s has %d ready pods, want %d", app, len(all), n)
	}
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

func (f *fixture) finish() error { f.again(); return f.job.Finish(f.Context(), f.runner) }

func (f *fixture) rollback() error { f.again(); return f.job.Rollback(f.Context(), f.runner) }

// audited fails if Calico's books do not fit the cluster.
func (f *fixture) audited() {
	f.Helper()
	state, err := calico.Load(f.Context(), server)
	f.Must(err)
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	f.Must(errors.Join(server.List(f.Context(), pods), server.List(f.Context(), nodes)))
	if problems := state.Audit(pods.Items, nodes.Items); len(problems) > 0 {
		f.Errorf("audit: %v", problems)
	}
}

// onlyPool fails unless the cluster has this pool alone, enabled, and no block of another.
func (f *fixture) onlyPool(cidr string) {
	f.Helper()
	state, err := calico.Load(f.Context(), server)
	f.Must(err)
	if len(state.Pools) != 1 || state.Pools[0].CIDR.String() != cidr || state.Pools[0].Spec.Disabled {
		f.Errorf("pools: %+v, want %s alone", state.Pools, cidr)
	}
	f.audited()
}
