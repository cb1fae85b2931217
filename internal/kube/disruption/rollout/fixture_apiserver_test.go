//go:build apiserver && long

package rollout

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// patience is for machines that are busy.
const patience = time.Minute

var (
	lazy    = &apitest.Lazy{Range: "10.96.0.0/16"}
	limited struct {
		once sync.Once
		client.Client
		err error
	}
)

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// connectLimited is a client of a user who has Rights and no others.
func connectLimited(server *apitest.Server) (client.Client, error) {
	admin, err := client.New(server.Config, client.Options{})
	if err != nil {
		return nil, err
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "rollout"}}
	for _, r := range slices.Concat(Rights(), TurnRights()) {
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			Verbs: []string{r.Verb}, APIGroups: []string{r.Group}, Resources: []string{resource},
		})
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "rollout"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "rollout"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "limited"}},
	}
	if err := errors.Join(admin.Create(context.Background(), role), admin.Create(context.Background(), binding)); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(server.Config)
	config.Impersonate.UserName = "limited"
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			_, err := Load(ctx, c)
			return err == nil, nil // the authorizer hears of the binding a little later
		})
	return c, err
}

// fixture is a namespace of its own, in which the test plays controllers and kubelets.
type fixture struct {
	*testing.T
	*apitest.Server
	tools   Deps
	ns      string
	changes Changes
	events  chan engine.Event
}

func setup(t *testing.T) *fixture {
	t.Helper()
	return setupNamed(t, strings.ToLower(t.Name()))
}

func setupNamed(t *testing.T, namespace string) *fixture {
	t.Helper()
	server := lazy.Get(t)
	limited.once.Do(func() { limited.Client, limited.err = connectLimited(server) })
	if limited.err != nil {
		t.Fatal(limited.err)
	}
	f := &fixture{T: t, Server: server, ns: namespace, events: make(chan engine.Event, 1000)}
	f.tools = Deps{Client: limited.Client, Timeout: patience}
	f.changes = Changes{KubernetesMovedAt: time.Now().Add(-time.Hour)}
	server.Namespace(t, f.ns)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: f.ns, Name: name, Labels: map[string]string{"app": "web"}}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func controlledBy(kind string, o client.Object) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: o.GetName(), UID: o.GetUID(), Controller: &yes}
}

func (f *fixture) deployment() *appsv1.Deployment {
	f.Helper()
	one := int32(1)
	d := &appsv1.Deployment{
		ObjectMeta: f.meta("web"),
		Spec:       appsv1.DeploymentSpec{Replicas: &one, Selector: selector(), Template: template()},
	}
	f.must(f.Create(f.Context(), d))
	f.complete(d)
	return d
}

// complete plays the Deployment controller: everything is rolled out.
func (f *fixture) complete(d *appsv1.Deployment) {
	f.Helper()
	f.must(f.Get(f.Context(), client.ObjectKeyFromObject(d), d))
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
		},
	}
	f.must(f.Status().Update(f.Context(), d))
}

func (f *fixture) replicaSet(name string, owner ...metav1.OwnerReference) *appsv1.ReplicaSet {
	f.Helper()
	one := int32(1)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: f.meta(name),
		Spec:       appsv1.ReplicaSetSpec{Replicas: &one, Selector: selector(), Template: template()},
	}
	rs.OwnerReferences = owner
	f.must(f.Create(f.Context(), rs))
	return rs
}

// pod runs since age ago, and is ready.
func (f *fixture) pod(name string, age time.Duration, owner ...metav1.OwnerReference) *corev1.Pod {
	f.Helper()
	p := &corev1.Pod{ObjectMeta: f.meta(name), Spec: template().Spec}
	p.OwnerReferences = owner
	f.must(f.Create(f.Context(), p))
	since := metav1.NewTime(time.Now().Add(-age))
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &since,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", Image: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
		}},
	}
	f.must(f.Status().Update(f.Context(), p))
	return p
}

func (f *fixture) budget(allowed int32) *policyv1.PodDisruptionBudget {
	f.Helper()
	none := intstr.FromInt32(1)
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: f.meta("guard"), Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector(), MinAvailable: &none},
	}
	f.must(f.Create(f.Context(), b))
	f.allow(b, allowed)
	return b
}

// allow plays the disruption controller.
func (f *fixture) allow(b *policyv1.PodDisruptionBudget, allowed int32) {
	f.Helper()
	b.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: b.Generation, DisruptionsAllowed: allowed, CurrentHealthy: 1 + allowed, DesiredHealthy: 1, ExpectedPods: 1,
	}
	f.must(f.Status().Update(f.Context(), b))
}

func (f *fixture) load() *State {
	f.Helper()
	s, err := Load(f.Context(), f.tools.Client)
	f.must(err)
	s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return p.Namespace != f.ns })
	return s
}

// restart is the step for the only workload to restart.
func (f *fixture) restart() engine.Step {
	f.Helper()
	plan := f.load().Plan(f.changes, v1alpha1.BarePodsReport)
	if len(plan.Restarts) != 1 {
		f.Fatalf("plan: %+v", plan)
	}
	return f.tools.Restart(plan.Restarts[0], f.changes)
}

// evict is the step for the only pod to evict.
func (f *fixture) evict() engine.Step {
	f.Helper()
	plan := f.load().Plan(f.changes, v1alpha1.BarePodsEvict)
	if len(plan.Evictions) != 1 {
		f.Fatalf("plan: %+v", plan)
	}
	return f.tools.Evict(&plan.Evictions[0], f.changes)
}

// start runs a step until it ends or ctx does.
func (f *fixture) start(ctx context.Context, s engine.Step) <-chan error {
	ended := make(chan error, 1)
	runner := &engine.Runner{Sink: func(e engine.Event) { f.events <- e }}
	plan := &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "refresh", Groups: []engine.Group{{Steps: []engine.Step{s}}}}}}
	go func() { ended <- runner.Run(ctx, plan) }()
	return ended
}

// waiting returns when the running step says that it waits for what.
func (f *fixture) waiting(what string) {
	f.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-f.events:
			if e.Kind == engine.StepWaiting && strings.Contains(e.Error, what) {
				return
			}
		case <-deadline:
			f.Fatalf("it never waited for: %s", what)
		}
	}
}

func (f *fixture) restartedAt(d *appsv1.Deployment) string {
	f.Helper()
	f.must(f.Get(f.Context(), client.ObjectKeyFromObject(d), d))
	return d.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt]
}

// remove plays the kubelet: the pod has ended.
func (f *fixture) remove(o client.Object) {
	f.Helper()
	f.must(client.IgnoreNotFound(f.Delete(f.Context(), o, client.GracePeriodSeconds(0))))
}

func (f *fixture) state(s engine.Step, want engine.State) {
	f.Helper()
	if got, err := s.State(f.Context()); got != want || err != nil {
		f.Errorf("state of %s: %v, %v; want %v", s.ID(), got, err, want)
	}
}
