//go:build apiserver && long

package agentset

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// lazy is shared by the tests of this package; each begins with an empty cluster. Its controllers
// are real, its nodes are played.
var (
	lazy   = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.Calico(), apitest.Controllers()}}
	server *apitest.Server
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// fixture is a cluster of two nodes. It plays the agents as well: whatever pod of theirs runs
// reports.
type fixture struct {
	*migrationtest.Stage
	set    *Set
	fleet  *fakekubelet.Fleet
	runner *engine.Runner

	// obstacle keeps pods from starting: a reason and a message. mute nodes have agents that do not
	// report.
	obstacle [2]string
	mute     []string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	server.Namespace(t, v1alpha1.SystemNamespace)
	f := &fixture{Stage: migrationtest.New(t, server)}
	f.Must(server.InstallCRD(t.Context()))
	f.fleet = &fakekubelet.Fleet{Client: server, Obstacle: f.obstacleOf, Addresses: &fakekubelet.Counting{}}
	f.node("a", "192.0.2.1")
	f.node("b", "192.0.2.2")
	u := calico.Empty("IPPool", "default")
	u.Object["spec"] = map[string]any{"cidr": "10.244.0.0/16", "blockSize": int64(26)}
	f.Must(client.IgnoreAlreadyExists(server.Create(t.Context(), u)))
	ctx, stop := context.WithCancel(context.Background())
	var played sync.WaitGroup
	played.Go(func() { f.fleet.Run(ctx) })
	played.Go(func() { wait.UntilWithContext(ctx, f.report, 100*time.Millisecond) })
	t.Cleanup(func() { clean(t); stop(); played.Wait() }) // pods need their kubelets to end
	f.set = f.newSet("m")
	f.runner = &engine.Runner{Sink: func(e engine.Event) { f.Hear(e, nil) }, Deadline: migrationtest.Patience}
	return f
}

func (f *fixture) newSet(name string) *Set {
	return &Set{
		Cluster:   server.Cluster,
		Migration: name,
		Image:     pull.Image{Name: "example.com/replumb:v1"},
		Wait:      migrationtest.Patience,
		Ranges:    ranges(),
	}
}

func (f *fixture) node(name, address string) {
	f.Helper()
	f.Must(f.fleet.Node(f.Context(), name, netip.MustParseAddr(address)))
}

// clean removes what tests make, workloads before their pods.
func clean(t *testing.T) {
	t.Helper()
	migrationtest.Clear(t, server, &appsv1.DaemonSetList{}, &appsv1.DeploymentList{}, &corev1.PodList{})
	ctx := context.Background()
	if err := client.IgnoreNotFound(server.DeleteAllOf(ctx, &v1alpha1.NodeReport{})); err != nil {
		t.Fatal(err)
	}
	for _, o := range rests() {
		if err := client.IgnoreNotFound(server.Delete(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.DeleteAllOf(ctx, &corev1.Event{}, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
		t.Fatal(err)
	}
	server.Clean(t)
}

// report plays the agents. What fails is made up for the next time.
func (f *fixture) report(ctx context.Context) {
	pods := &corev1.PodList{}
	if server.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), client.HasLabels{v1alpha1.LabelRole}) != nil {
		return
	}
	f.Mu.Lock()
	mute := slices.Clone(f.mute)
	f.Mu.Unlock()
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase != corev1.PodRunning || !p.DeletionTimestamp.IsZero() || slices.Contains(mute, p.Spec.NodeName) {
			continue
		}
		r := &v1alpha1.NodeReport{}
		r.Name, r.Labels = p.Spec.NodeName, map[string]string{v1alpha1.LabelMigration: p.Labels[v1alpha1.LabelMigration]}
		if server.Get(ctx, client.ObjectKeyFromObject(r), r) != nil && server.Create(ctx, r) != nil {
			continue
		}
		if p.Labels[v1alpha1.LabelRole] == v1alpha1.RoleSingle {
			continue
		}
		origin := v1alpha1.FromHost
		if p.Labels[v1alpha1.LabelRole] == v1alpha1.RoleProbe {
			origin = v1alpha1.FromPod
		}
		k := slices.IndexFunc(r.Status.Agents, func(a v1alpha1.AgentReport) bool { return a.Origin == origin })
		if k < 0 {
			k = len(r.Status.Agents)
			r.Status.Agents = append(r.Status.Agents, v1alpha1.AgentReport{Origin: origin})
		}
		a := &r.Status.Agents[k]
		a.Instance, a.Sequence, a.ReportedAt = string(p.UID), a.Sequence+1, metav1.NowMicro()
		_ = server.Status().Update(ctx, r)
	}
}

func (f *fixture) obstacleOf(*corev1.Pod) (reason, message string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.obstacle[0], f.obstacle[1]
}

// install runs the plan to put agents on nodes and returns the steps that did something.
func (f *fixture) install(s *Set) ([]string, error) { return f.Did(f.runner, Phase, s.Install()) }

func (f *fixture) remove(s *Set) ([]string, error) {
	return f.Did(f.runner, "tidy", []engine.Group{{Steps: s.Remove()}})
}

func (f *fixture) get(o client.Object, name string) bool {
	f.Helper()
	key := client.ObjectKey{Name: name, Namespace: o.GetNamespace()}
	err := server.Get(f.Context(), key, o)
	if err != nil && !apierrors.IsNotFound(err) {
		f.Fatal(err)
	}
	return err == nil
}

// migration records one that has got to a phase.
func (f *fixture) migration(name string, phase v1alpha1.Phase) {
	f.Helper()
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MigrationSpec{
		ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}},
	}}
	f.Must(engine.Drive(f.Context(), &migration.CRDStep{Cluster: server.Cluster}))
	f.Must(client.IgnoreAlreadyExists(server.Create(f.Context(), m)))
	f.Must(migration.UpdateStatus(f.Context(), server, name, func(st *v1alpha1.MigrationStatus) { st.Phase = phase }))
}

func ranges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16")}
}

func pool() *cidr.Allocator {
	return cidr.NewPool([]netip.Prefix{netip.MustParsePrefix("10.96.7.0/24")}, nil)
}

// as is the cluster for a user with nothing but rights.
func (f *fixture) as(user string) *cluster.Cluster {
	f.Helper()
	return f.with(user, nil)
}

// agent is the cluster for the agent of a network on a node, whose pod has a UID.
func (f *fixture) agent(o v1alpha1.ProbeOrigin, node, uid string) *cluster.Cluster {
	f.Helper()
	return f.with(userOf(o), map[string][]string{
		"authentication.kubernetes.io/node-name": {node}, "authentication.kubernetes.io/pod-uid": {uid},
	})
}

func (f *fixture) with(user string, extra map[string][]string) *cluster.Cluster {
	f.Helper()
	config := server.RESTConfig()
	config.Impersonate.UserName, config.Impersonate.Extra = user, extra
	c, err := cluster.Connect(config)
	f.Must(err)
	return c
}
