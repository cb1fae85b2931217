//go:build apiserver

package rollout

import (
	"context"
	"errors"
	"fmt"
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
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

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
	for _, r := range Rights() {
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
	err = wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, 10*time.Second, true,
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
	tools   Tools
	ns      string
	changes Changes
	events  chan engine.Event
}

func setup(t *testing.T) *fixture {
	t.Helper()
	server := lazy.Get(t)
	limited.once.Do(func() { limited.Client, limited.err = connectLimited(server) })
	if limited.err != nil {
		t.Fatal(limited.err)
	}
	f := &fixture{T: t, Server: server, ns: strings.ToLower(t.Name()), events: make(chan engine.Event, 1000)}
	f.tools = Tools{Client: limited.Client, Timeout: 10 * time.Second}
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
	deadline := time.After(8 * time.Second)
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

func TestRestartDeployment(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	budget := f.budget(0)
	step := f.restart()
	f.state(step, engine.Pending)

	ended := f.start(t.Context(), step)
	f.waiting("pdb " + f.ns + "/guard allows no disruption now")
	if at := f.restartedAt(d); at != "" {
		t.Fatalf("restarted at %s against the budget", at)
	}
	f.allow(budget, 1)
	f.waiting("its controller has not seen the change")
	if f.restartedAt(d) == "" {
		t.Fatal("not restarted")
	}
	f.complete(d)
	f.waiting("pods with old addresses: web-old")
	f.pod("web-new", 0, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", d))))
	f.remove(old)
	f.must(<-ended)
	f.state(step, engine.Done)
	if !slices.ContainsFunc(d.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == v1alpha1.FieldManager && strings.Contains(m.FieldsV1.GetRawString(), v1alpha1.AnnotationRestartedAt)
	}) {
		t.Error("the annotation is not replumb's")
	}
	if plan := f.load().Plan(f.changes, v1alpha1.BarePodsEvict); len(plan.Restarts)+len(plan.Evictions)+len(plan.Reported) > 0 {
		t.Errorf("still to do: %+v", plan)
	}
}

func TestRestartTakesUpWhereKilled(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	ctx, kill := context.WithCancel(t.Context())
	ended := f.start(ctx, f.restart())
	f.waiting("has not seen the change")
	kill()
	if err := <-ended; !errors.Is(err, engine.ErrInterrupted) {
		t.Fatal(err)
	}
	first := f.restartedAt(d)

	// Killed before the controller did anything.
	ended = f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	again := f.restart()
	// Killed when the old pods had gone, and the new ones were not there yet.
	f.remove(old)
	f.state(again, engine.Pending)
	f.must(again.Do(t.Context()))
	if now := f.restartedAt(d); now != first || d.Generation != 2 {
		t.Errorf("restarted at %s and again at %s, generation %d", first, now, d.Generation)
	}
	f.complete(d)
	f.must(<-ended)
	f.state(again, engine.Done)

	// A change that came later restarts it again, for it has Changes of its own.
	f.pod("web-new", 0, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", d))))
	f.changes.KubernetesMovedAt = time.Now().Add(time.Second)
	later := f.changes.KubernetesMovedAt
	f.tools.Now = func() time.Time { return later }
	if err := f.restart().Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "distinguished from old ones") {
		t.Errorf("in the second of the change: %v", err)
	}
	if now := f.restartedAt(d); now != first {
		t.Errorf("restarted at %s, too early", now)
	}
	f.tools.Now = func() time.Time { return later.Add(time.Second) }
	f.must(f.restart().Do(t.Context()))
	if now := f.restartedAt(d); now == first {
		t.Error("not restarted for the later change")
	}
}

func TestRestartOfDeletedWorkload(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	step := f.restart()
	ended := f.start(t.Context(), step)
	f.waiting("has not seen the change")
	f.must(f.Delete(t.Context(), d, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	f.must(<-ended)
	f.state(step, engine.Done)
	second := f.deployment() // of the same name
	f.pod("web-second", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-2", controlledBy("Deployment", second))))
	f.state(step, engine.Done)
	f.must(step.Do(t.Context()))
	if at := f.restartedAt(second); at != "" {
		t.Errorf("another deployment was restarted at %s", at)
	}
}

func TestRestartOnlyWaitsForEndingPods(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	rs := f.replicaSet("web-1", controlledBy("Deployment", d))
	p := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", rs))
	p.Finalizers = []string{"replumb.dev/test"}
	f.must(f.Update(t.Context(), p))
	f.must(f.Delete(t.Context(), p))
	ended := f.start(t.Context(), f.restart())
	f.waiting("pods with old addresses: web-old")
	if at := f.restartedAt(d); at != "" {
		t.Errorf("restarted at %s", at)
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	p.Finalizers = nil
	f.must(f.Update(t.Context(), p))
	f.must(<-ended)
}

func TestRestartLeavesPausedAlone(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d))))
	step := f.restart()
	f.must(f.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"paused":true}}`))))
	if err := step.Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "is paused") {
		t.Errorf("got %v", err)
	}
	if at := f.restartedAt(d); at != "" {
		t.Errorf("restarted at %s", at)
	}
}

func TestRestartAllAtOnceNeedsMoreOfBudget(t *testing.T) {
	f := setup(t)
	d := f.deployment()
	f.must(
		f.Patch(
			t.Context(),
			d,
			client.RawPatch(types.MergePatchType, []byte(`{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`)),
		),
	)
	rs := controlledBy("ReplicaSet", f.replicaSet("web-1", controlledBy("Deployment", d)))
	f.pod("web-a", 2*time.Hour, rs)
	f.pod("web-b", 2*time.Hour, rs)
	budget := f.budget(1)
	step := f.restart()
	if err := step.Do(t.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), "stops 2 pods at once") {
		t.Errorf("got %v", err)
	}
	f.allow(budget, 2)
	f.must(step.Do(t.Context()))
	if f.restartedAt(d) == "" {
		t.Error("not restarted")
	}
}

func TestRestartStatefulSetInPart(t *testing.T) {
	f := setup(t)
	two, partition := int32(2), int32(1)
	s := &appsv1.StatefulSet{ObjectMeta: f.meta("db"), Spec: appsv1.StatefulSetSpec{
		Replicas: &two, Selector: selector(), Template: template(),
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
		},
	}}
	f.must(f.Create(t.Context(), s))
	f.pod("db-0", 2*time.Hour, controlledBy("StatefulSet", s))
	second := f.pod("db-1", 2*time.Hour, controlledBy("StatefulSet", s))
	ended := f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	s.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: s.Generation,
		Replicas:           2,
		UpdatedReplicas:    1,
		ReadyReplicas:      2,
		AvailableReplicas:  2,
	}
	f.must(f.Status().Update(t.Context(), s))
	f.waiting("old addresses: db-1")
	f.remove(second)
	f.pod("db-1", 0, controlledBy("StatefulSet", s))
	f.must(<-ended)
	plan := f.load().Plan(f.changes, v1alpha1.BarePodsReport)
	if len(plan.Restarts) != 0 || len(plan.Reported) != 1 || plan.Reported[0].Pod.Name != "db-0" {
		t.Errorf("left: %+v", plan)
	}
}

func TestRestartDaemonSet(t *testing.T) {
	f := setup(t)
	d := &appsv1.DaemonSet{ObjectMeta: f.meta("log"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	f.must(f.Create(t.Context(), d))
	old := f.pod("log-old", 2*time.Hour, controlledBy("DaemonSet", d))
	ended := f.start(t.Context(), f.restart())
	f.waiting("has not seen the change")
	f.remove(old)
	f.pod("log-new", 0, controlledBy("DaemonSet", d))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	d.Status = appsv1.DaemonSetStatus{
		ObservedGeneration:     d.Generation,
		DesiredNumberScheduled: 1,
		CurrentNumberScheduled: 1,
		UpdatedNumberScheduled: 1,
		NumberAvailable:        1,
		NumberReady:            1,
	}
	f.must(f.Status().Update(t.Context(), d))
	f.must(<-ended)
}

func TestEvictBarePod(t *testing.T) {
	f := setup(t)
	p := f.pod("bare", 2*time.Hour)
	budget := f.budget(0)
	step := f.evict()
	f.state(step, engine.Pending)
	ended := f.start(t.Context(), step)
	f.waiting("disruption budget guard") // the API server's own words
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
	f.allow(budget, 1)
	f.must(<-ended)
	if err := f.Get(t.Context(), client.ObjectKeyFromObject(p), p); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the pod is still there: %v", err)
	}
	f.state(step, engine.Done)
	f.pod("bare", 2*time.Hour) // somebody made it again
	f.state(step, engine.Done)
	f.must(step.Do(t.Context()))
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
}

func TestEvictWaitsForReplacement(t *testing.T) {
	f := setup(t)
	rs := f.replicaSet("alone")
	f.pod("alone-old", 2*time.Hour, controlledBy("ReplicaSet", rs))
	step := f.evict()
	ended := f.start(t.Context(), step)
	f.waiting("ReplicaSet alone has 0 of 1 pods ready")
	f.state(step, engine.Pending)
	f.pod("alone-new", 0, controlledBy("ReplicaSet", rs))
	f.must(<-ended)
	f.state(step, engine.Done)
}

func TestEvictedPodEndsSlowly(t *testing.T) {
	f := setup(t)
	p := &corev1.Pod{ObjectMeta: f.meta("slow"), Spec: template().Spec}
	p.Spec.NodeName = "n1" // so that a kubelet has to let it go
	f.must(f.Create(t.Context(), p))
	since := metav1.NewTime(time.Now().Add(-2 * time.Hour))
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &since, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "c", Image: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
	}}}
	f.must(f.Status().Update(t.Context(), p))
	ended := f.start(t.Context(), f.evict())
	f.waiting("has not ended yet")
	f.remove(p)
	f.must(<-ended)
}

func TestEvictOwners(t *testing.T) {
	f := setup(t)
	yes := true
	job := &batchv1.Job{ObjectMeta: f.meta("work"), Spec: batchv1.JobSpec{Template: template()}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	f.must(f.Create(t.Context(), job))
	gone := controlledBy("ReplicaSet", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "gone", UID: "x"}})
	ofJob := controlledBy("Job", job)
	ofJob.APIVersion = "batch/v1"
	foreign := metav1.OwnerReference{APIVersion: "x.io/v1", Kind: "ReplicaSet", Name: "x", UID: "y", Controller: &yes}
	for _, tt := range []struct {
		name  string
		owner metav1.OwnerReference
		want  string
	}{
		{"gone", gone, ""},
		{"job", ofJob, "Job work has 0 of 1"},
		{"foreign", foreign, "ReplicaSet x has 0 of 1"},
	} {
		p := pod("p", 0)
		p.Namespace, p.Name, p.OwnerReferences = f.ns, tt.name, []metav1.OwnerReference{tt.owner}
		err := f.tools.Evict(&p, f.changes).Verify(t.Context())
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !engine.Retryable(err)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := f.Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))); err != nil {
		t.Fatal(err)
	}
	p := pod("p", 0)
	p.Namespace, p.Name, p.OwnerReferences = f.ns, "suspended", []metav1.OwnerReference{ofJob}
	f.must(f.tools.Evict(&p, f.changes).Verify(t.Context()))
}

func TestLoadGoesThroughPages(t *testing.T) {
	f := setup(t)
	seen := map[string]bool{}
	for i := range 3 {
		f.pod(fmt.Sprintf("p%d", i), time.Hour)
	}
	// As each does, with pages of one.
	err := each(t.Context(), f.tools.Client, &corev1.PodList{}, func(p *corev1.Pod) { seen[p.Name] = true },
		client.InNamespace(f.ns), client.Limit(1))
	if err != nil || len(seen) != 3 {
		t.Errorf("saw %v, %v", seen, err)
	}
	for _, p := range f.load().Pods {
		if len(p.Status.ContainerStatuses) != 1 || p.ManagedFields != nil || p.Spec.Containers != nil {
			t.Errorf("kept %+v", p)
		}
	}
}
