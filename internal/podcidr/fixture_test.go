package podcidr

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/apitest"
	"github.com/replumb/replumb/internal/calico"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/lock"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/nodesim"
	"github.com/replumb/replumb/internal/trial"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. Its controllers are real, its nodes are
// played.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers(), apitest.Unsafe()}}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

const (
	oldRange, newRange = "10.244.0.0/24", "10.245.0.0/24"
	newPool            = "pods-10-245-0-0-24"
	patience           = 30 * time.Second
)

// fixture is a cluster of two nodes with a pool, and the job.
type fixture struct {
	*testing.T
	fleet  *nodesim.Fleet
	job    *Job
	runner *engine.Runner

	mu       sync.Mutex
	events   []engine.Event
	heard    *sync.Cond
	obstacle string // why pods with new addresses do not start
	failing  string // why canaries fail
}

func sample() *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec: v1alpha1.MigrationSpec{
			PodCIDR: &v1alpha1.PodCIDRSpec{
				To: []string{newRange}, BlockSize: 28,
				Roll: v1alpha1.RollSpec{Parallel: 4, Timeout: &metav1.Duration{Duration: patience}},
			},
			Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled},
		},
	}
}

func setup(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	server.Namespace(t, "shop")
	f := &fixture{T: t}
	f.heard = sync.NewCond(&f.mu)
	f.fleet = &nodesim.Fleet{Client: server, Obstacle: f.obstacleOf, Phase: f.phaseOf, Addresses: &nodesim.Blocks{Client: server}}
	f.must(f.fleet.Node(t.Context(), "a", netip.MustParseAddr("192.0.2.1")))
	f.must(f.fleet.Node(t.Context(), "b", netip.MustParseAddr("192.0.2.2")))
	f.pool("default", oldRange)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.fleet.Run(ctx) }()
	t.Cleanup(func() { clean(t); stop(); <-ended }) // pods need their kubelets to end
	m := sample()
	for _, c := range change {
		c(m)
	}
	f.with(m)
	f.runner = &engine.Runner{Sink: f.take, Deadline: patience}
	return f
}

// with makes the job of a Migration.
func (f *fixture) with(m *v1alpha1.Migration) {
	f.Helper()
	job, err := NewJob(Tools{Cluster: server.Cluster, Image: "replumb"}, m)
	f.must(err)
	// A process that is long gone: what a killed run leaves behind is taken over at once.
	holder := lock.Self("m", "test")
	holder.PID = 1<<22 + 1
	job.Holder = &holder
	f.job = job
}

// clean removes what tests make, workloads before their pods.
func clean(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	everywhere := []client.ObjectList{
		&policyv1.PodDisruptionBudgetList{}, &batchv1.JobList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{},
		&appsv1.DaemonSetList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{}, kinds("IPPool"), kinds("IPAMBlock"), kinds("BlockAffinity"),
		kinds("IPAMHandle"), kinds("ClusterInformation"),
	}
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		left := 0
		for _, list := range everywhere {
			n, err := removeAll(ctx, list)
			if err != nil {
				return false, err
			}
			left += n
		}
		return left == 0, nil
	})
	if err != nil {
		t.Fatalf("cleaning up: %v", err)
	}
	server.Clean(t)
}

func kinds(kind string) client.ObjectList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(calico.GroupVersion().WithKind(kind + "List"))
	return l
}

func removeAll(ctx context.Context, list client.ObjectList) (int, error) {
	if err := server.List(ctx, list); err != nil {
		return 0, err
	}
	n := 0
	err := eachItem(list, func(o client.Object) error {
		n++
		if len(o.GetFinalizers()) > 0 {
			o.SetFinalizers(nil)
			_ = server.Update(ctx, o) // the next round looks again
		}
		return client.IgnoreNotFound(
			server.Delete(ctx, o, client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground)),
		)
	})
	return n, err
}

func (f *fixture) take(e engine.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
	f.heard.Broadcast()
}

// waiting returns when a step says that it waits for what.
func (f *fixture) waiting(what string) {
	f.Helper()
	timer := time.AfterFunc(patience, f.heard.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(patience)
	f.mu.Lock()
	defer f.mu.Unlock()
	for !saw(f.events, what) {
		if time.Now().After(end) {
			f.Fatalf("it never waited for %q, but: %v", what, f.events)
		}
		f.heard.Wait()
	}
}

func saw(events []engine.Event, what string) bool {
	for _, e := range events {
		if (e.Kind == engine.StepWaiting || e.Kind == engine.StepRetried) && strings.Contains(e.Error, what) {
			return true
		}
	}
	return false
}

func (f *fixture) obstacleOf(pod *corev1.Pod) (reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.obstacle == "" || pod.Namespace != "shop" {
		return "", ""
	}
	return "ImagePullBackOff", f.obstacle
}

func (f *fixture) set(field *string, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*field = to
}

func (f *fixture) phaseOf(pod *corev1.Pod) corev1.PodPhase {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case pod.Labels[trial.Label] == "call" && f.failing != "":
		return corev1.PodFailed
	case pod.Labels[trial.Label] == "call":
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) pool(name, cidr string) {
	f.Helper()
	u := calico.Empty("IPPool", name)
	u.Object["spec"] = map[string]any{"cidr": cidr, "blockSize": int64(28), "vxlanMode": "CrossSubnet", "natOutgoing": true}
	f.must(server.Create(f.Context(), u))
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}}
}

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func template(name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
}

// create makes a workload and waits until n pods of it are ready.
func (f *fixture) create(o client.Object, n int) {
	f.Helper()
	f.must(server.Create(f.Context(), o))
	f.until("pods of "+o.GetName(), func() bool { return len(f.ready(o.GetName())) == n })
}

func (f *fixture) deployment(name string, n int32) *appsv1.Deployment {
	f.Helper()
	d := &appsv1.Deployment{
		ObjectMeta: named(name), Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: selector(name), Template: template(name)},
	}
	f.create(d, int(n))
	return d
}

func (f *fixture) statefulSet(name string, n int32) {
	f.Helper()
	f.create(&appsv1.StatefulSet{
		ObjectMeta: named(name), Spec: appsv1.StatefulSetSpec{Replicas: &n, Selector: selector(name), Template: template(name)},
	}, int(n))
}

func (f *fixture) daemonSet(name string) {
	f.Helper()
	f.create(&appsv1.DaemonSet{ObjectMeta: named(name), Spec: appsv1.DaemonSetSpec{Selector: selector(name), Template: template(name)}}, 2)
}

func (f *fixture) barePod(name string) {
	f.Helper()
	t := template(name)
	f.create(&corev1.Pod{ObjectMeta: named(name), Spec: t.Spec}, 1)
}

func (f *fixture) budget(name string, least int) *policyv1.PodDisruptionBudget {
	f.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: named(
			name,
		),
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector(name), MinAvailable: ptr.To(intstr.FromInt(least))},
	}
	f.must(server.Create(f.Context(), b))
	f.until("budget "+name, func() bool {
		f.must(server.Get(f.Context(), client.ObjectKeyFromObject(b), b))
		return b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0
	})
	return b
}

// until waits for the cluster.
func (f *fixture) until(what string, holds func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(
		f.Context(),
		20*time.Millisecond,
		patience,
		true,
		func(context.Context) (bool, error) { return holds(), nil },
	)
	if err != nil {
		f.Fatalf("waiting for %s: %v", what, err)
	}
}

// ready are the addresses of the ready pods of an app.
func (f *fixture) ready(app string) []netip.Addr {
	f.Helper()
	all := &corev1.PodList{}
	f.must(server.List(f.Context(), all, client.InNamespace("shop"), client.MatchingLabels{"app": app}))
	var out []netip.Addr
	for i := range all.Items {
		if p := &all.Items[i]; trial.Ready(p) && p.DeletionTimestamp.IsZero() {
			out = append(out, calico.PodAddresses(p)...)
		}
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

// applying starts a run of its own.
func (f *fixture) applying() <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- f.apply() }()
	return ended
}

func (f *fixture) apply() error {
	_, err := f.job.Apply(f.Context(), f.runner)
	return err
}

// again is what a new process with the same command begins with: the Migration as the cluster has it.
func (f *fixture) again() v1alpha1.MigrationStatus {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.must(err)
	if m == nil {
		f.Fatal("there is no Migration")
	}
	f.job.Migration = m
	return m.Status
}

func (f *fixture) finish() error   { f.again(); return f.job.Finish(f.Context(), f.runner) }
func (f *fixture) rollback() error { f.again(); return f.job.Rollback(f.Context(), f.runner) }

// fails expects an error that says all of this.
func (f *fixture) fails(err error, says ...string) {
	f.Helper()
	for _, s := range says {
		if err == nil || !strings.Contains(err.Error(), s) {
			f.Fatalf("got %v, want %q", err, s)
		}
	}
}

// audited fails if Calico's books do not fit the cluster.
func (f *fixture) audited() {
	f.Helper()
	state, err := calico.Load(f.Context(), server)
	f.must(err)
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	f.must(errors.Join(server.List(f.Context(), pods), server.List(f.Context(), nodes)))
	if problems := state.Audit(pods.Items, nodes.Items); len(problems) > 0 {
		f.Errorf("audit: %v", problems)
	}
}

// onlyPool fails unless the cluster has this pool alone, enabled, and no block of another.
func (f *fixture) onlyPool(cidr string) {
	f.Helper()
	state, err := calico.Load(f.Context(), server)
	f.must(err)
	if len(state.Pools) != 1 || state.Pools[0].CIDR.String() != cidr || state.Pools[0].Spec.Disabled {
		f.Errorf("pools: %+v, want %s alone", state.Pools, cidr)
	}
	f.audited()
}
