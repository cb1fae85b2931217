//go:build apiserver && long

package overlapset

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/overlap"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/crash"
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

// fixture is a cluster of two nodes. It plays the replicas as well: whatever pod of theirs runs
// says that all is in step.
type fixture struct {
	*migrationtest.Stage
	set    *Set
	fleet  *fakekubelet.Fleet
	runner *engine.Runner

	// obstacle keeps pods from starting: a reason and a message. mute replicas say nothing.
	obstacle [2]string
	mute     bool
}

func setup(t *testing.T) *fixture {
	t.Helper()
	server = lazy.Get(t)
	clean(t)
	server.Namespace(t, v1alpha1.SystemNamespace)
	f := &fixture{Stage: migrationtest.New(t, server)}
	f.Must(server.InstallCRD(t.Context()))
	f.fleet = &fakekubelet.Fleet{Client: server, Obstacle: f.obstacleOf, Addresses: &fakekubelet.Counting{}}
	f.Must(f.fleet.Node(t.Context(), "a", netip.MustParseAddr("192.0.2.1")))
	f.Must(f.fleet.Node(t.Context(), "b", netip.MustParseAddr("192.0.2.2")))
	u := calico.Empty("IPPool", "default")
	u.Object["spec"] = map[string]any{"cidr": "10.244.0.0/16", "blockSize": int64(26)}
	f.Must(client.IgnoreAlreadyExists(server.Create(t.Context(), u)))
	agents := &fakekubelet.Agents{Client: server, Mute: func(*corev1.Pod) bool {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		return f.mute
	}}
	ctx, stop := context.WithCancel(context.Background())
	var played sync.WaitGroup
	played.Go(func() { f.fleet.Run(ctx) })
	played.Go(func() { agents.Run(ctx) })
	t.Cleanup(func() { clean(t); stop(); played.Wait() }) // pods need their kubelets to end
	f.set = f.newSet()
	f.runner = &engine.Runner{Sink: func(e engine.Event) { f.Hear(e, nil) }, Deadline: migrationtest.Patience}
	return f
}

func (f *fixture) newSet() *Set {
	return &Set{
		Cluster: crash.Watch(
			f.T,
			server.Cluster,
		),
		Migration: "m",
		Image:     pull.Image{Name: "example.com/replumb:v1"},
		Wait:      migrationtest.Patience,
	}
}

// clean removes what tests make, workloads before their pods.
func clean(t *testing.T) {
	t.Helper()
	migrationtest.Clear(t, server, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &corev1.PodList{})
	ctx := context.Background()
	kinds, err := (&Set{Migration: "m"}).kinds()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range kinds {
		if err := client.IgnoreNotFound(server.Delete(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []client.Object{&corev1.Event{}, &coordinationv1.Lease{}} {
		if err := server.DeleteAllOf(ctx, o, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
			t.Fatal(err)
		}
	}
	server.Clean(t)
}

// run runs a plan and returns the steps that did something.
func (f *fixture) run(groups []engine.Group) ([]string, error) { return f.Did(f.runner, Phase, groups) }

func (f *fixture) obstacleOf(*corev1.Pod) (reason, message string) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return f.obstacle[0], f.obstacle[1]
}

// TestThereAndGone: two replicas come up on two nodes, a second time changes nothing, what was
// changed is repaired, and nothing is left.
func TestThereAndGone(t *testing.T) {
	f := setup(t)
	f.mute = true // until they are waited for: else they may be there before
	var done []string
	ended := make(chan error, 1)
	go func() {
		var err error
		done, err = f.run(f.set.Install())
		ended <- err
	}()
	f.Waiting("runs, but has not reported")
	f.Change(func() { f.mute = false })
	f.Must(<-ended)
	if want := []string{"overlap/alive", "overlap/deployment", "overlap/rights"}; !slices.Equal(done, want) {
		t.Errorf("did %v, want %v", done, want)
	}
	pods, err := f.set.pods(t.Context())
	f.Must(err)
	if len(pods) != 2 || pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("the pods are %v", pods)
	}
	if st, err := f.set.State(
		t.Context(),
	); err != nil || !st.Well() ||
		!strings.HasPrefix(st.String(), "2 of 2 replicas alive, leader overlap-") {
		t.Errorf("the state is %v, %v", st, err)
	}
	if done, err := f.run(f.newSet().Install()); err != nil || len(done) > 0 {
		t.Errorf("a second time did %v, %v", done, err)
	}

	d := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Name}
	f.Must(server.Get(t.Context(), key, d))
	was := d.DeepCopy()
	none := int32(0)
	d.Spec.Replicas = &none
	f.Must(server.Patch(t.Context(), d, client.MergeFrom(was)))
	f.Must(
		server.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: Access}}),
	)
	if done, err = f.run(
		f.newSet().Install(),
	); err != nil || !slices.Contains(done, "overlap/deployment") ||
		!slices.Contains(done, "overlap/rights") {
		t.Errorf("repairing did %v, %v", done, err)
	}
	if there, err := f.set.There(t.Context()); err != nil || !there {
		t.Errorf("there: %v, %v", there, err)
	}

	if done, err := f.run(f.set.Remove()); err != nil || !slices.Equal(done, []string{"tidy/overlap"}) {
		t.Errorf("removing did %v, %v", done, err)
	}
	if left, err := f.set.left(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	budgets := &policyv1.PodDisruptionBudgetList{}
	f.Must(server.List(t.Context(), budgets, client.InNamespace(v1alpha1.SystemNamespace)))
	if len(budgets.Items) > 0 {
		t.Errorf("left: %v", budgets.Items)
	}
	if done, err := f.run(f.set.Remove()); err != nil || len(done) > 0 {
		t.Errorf("removing a second time did %v, %v", done, err)
	}
}

// TestWhyItIsNotThere: a run that waits says for what, and fails with what there is to do; the way
// back goes on without.
func TestWhyItIsNotThere(t *testing.T) {
	f := setup(t)
	f.obstacle = [2]string{"ImagePullBackOff", "not found"}
	ended := make(chan error, 1)
	go func() { _, err := f.run(f.set.Install()); ended <- err }()
	f.Waiting("has no image example.com/replumb:v1: ImagePullBackOff: not found")
	f.Change(func() { f.obstacle = [2]string{"CrashLoopBackOff", "back-off"} })
	f.Waiting("ends again and again")
	f.Change(func() { f.obstacle, f.mute = [2]string{}, true })
	f.Waiting("runs, but has not reported")
	f.Change(func() { f.mute = false })
	f.Must(<-ended)

	f.Change(func() { f.mute = true })
	_, err := f.run(f.set.Remove())
	f.Must(err)
	short := f.newSet()
	short.Wait = time.Second
	_, err = f.run(short.InstallIfPossible())
	f.Must(err)
	f.Until("the replicas to run", func() bool {
		pods, err := f.set.pods(t.Context())
		return err == nil && len(pods) == 2 &&
			!slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	})
	err = (&aliveStep{set: short}).Verify(t.Context())
	down := &DownError{}
	if !errors.As(err, &down) || down.All[0].Cause != workload.Mute || !strings.Contains(down.Advice(), "spec.serviceCIDR.follower") {
		t.Errorf("got %v", err)
	}
}

// TestRefused: what refuses pods is reported.
func TestRefused(t *testing.T) {
	f := setup(t)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "none"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.Quantity{}}},
	}
	c, err := server.Any()
	f.Must(err)
	f.Must(c.Create(t.Context(), quota))
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.Quantity{}}
	f.Must(c.Status().Update(t.Context(), quota))
	ended := make(chan error, 1)
	go func() { _, err := f.run(f.set.Install()); ended <- err }()
	f.Waiting("exceeded quota")
	f.Must(c.Delete(t.Context(), quota))
	f.Must(<-ended)
}

// TestRightsSuffice: a user with the rights that are asked for, and no others, puts it there and
// takes it away; and its account can do what replicas do, and no more.
func TestRightsSuffice(t *testing.T) {
	f := setup(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "user"}}
	more := append(Rights(), access.Grant("", "nodes", "", "list")...) // as those who move Services have
	more = append(more, access.Grant("apps", "deployments", "", "get")...)
	role.Rules = rbac.Rules(more)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "user"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "user"}},
	}
	f.Must(server.Create(t.Context(), role))
	f.Must(server.Create(t.Context(), binding))
	t.Cleanup(func() {
		_ = server.Delete(context.Background(), role)
		_ = server.Delete(context.Background(), binding)
	})
	f.set.Cluster = f.as("user")
	f.Granted(f.set.Cluster, more)
	_, err := f.run(f.set.Install())
	f.Must(err)

	replica := f.as("system:serviceaccount:" + v1alpha1.SystemNamespace + ":" + Name)
	ctx, stop := context.WithCancel(t.Context())
	var failed []error
	r := &overlap.Replica{Cluster: replica, Migration: "m", Name: "overlap-z", Log: func(err error) {
		f.Change(func() { failed = append(failed, err) })
	}}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	f.Until("a report of the replica", func() bool {
		l := &coordinationv1.Lease{}
		err := server.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "overlap-z"}, l)
		h, ok := overlap.Heard(l)
		return err == nil && ok && !h.InStep.IsZero()
	})
	stop()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(failed) > 0 {
		t.Errorf("a replica met with %v", failed)
	}
	for o, verb := range map[client.Object]func(client.Object) error{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}}: func(o client.Object) error {
			return replica.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}}: func(o client.Object) error {
			return replica.Delete(t.Context(), o)
		},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "x"}}: func(o client.Object) error {
			return replica.Get(t.Context(), client.ObjectKeyFromObject(o), o)
		},
	} {
		if err := verb(o); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%T: %v", o, err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if err := replica.Status().
		Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{}}`))); err == nil {
		t.Error("a replica can write the status of a Node")
	}
	_, err = f.run(f.set.Remove())
	f.Must(err)
}

// as is the cluster for a user with nothing but rights.
func (f *fixture) as(user string) *cluster.Cluster {
	f.Helper()
	config := server.RESTConfig()
	config.Impersonate.UserName = user
	c, err := cluster.Connect(config)
	f.Must(err)
	return c
}
