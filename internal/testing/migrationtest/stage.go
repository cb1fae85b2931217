// Package migrationtest is what tests of whole migrations share: workloads in a namespace of an API
// server, and ears for what a run says. For tests.
package migrationtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	// Namespace is where workloads are.
	Namespace = "shop"
	// Patience is how long anything may take on a busy machine.
	Patience = time.Minute
	// runPatience is the same for all that a run does until it waits for something.
	runPatience = 3 * Patience
)

// Stage is a cluster with workloads, and a run that is listened to. Make one by New.
type Stage struct {
	*testing.T
	client client.Client

	// Mu guards Events, and what else a test changes while a run goes on.
	Mu     sync.Mutex
	Events []engine.Event
	heard  *sync.Cond
}

// New makes a Stage of a cluster that has the Namespace.
func New(t *testing.T, c client.Client) *Stage {
	s := &Stage{T: t, client: c}
	s.heard = sync.NewCond(&s.Mu)
	return s
}

// Killed is a process that is long gone: what it left behind is taken over at once.
func Killed() *lease.Holder {
	holder := lease.Self("m", "test")
	holder.PID = 1<<22 + 1 // more than Linux gives out
	return &holder
}

// Must ends the test on an error.
func (s *Stage) Must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// Fails ends the test unless an error says all of this.
func (s *Stage) Fails(err error, says ...string) {
	s.Helper()
	for _, text := range says {
		if err == nil || !strings.Contains(err.Error(), text) {
			s.Fatalf("got %v, want %q", err, text)
		}
	}
}

// Until waits for the cluster.
func (s *Stage) Until(what string, holds func() bool) {
	s.Helper()
	err := wait.PollUntilContextTimeout(s.Context(), 20*time.Millisecond, Patience, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		s.Fatalf("waiting for %s: %v", what, err)
	}
}

// Hear takes what a run says: it is an engine.Runner's Sink. Mu is held when also is called, which
// may be nil.
func (s *Stage) Hear(e engine.Event, also func()) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Events = append(s.Events, e)
	s.heard.Broadcast()
	if also != nil {
		also()
	}
}

// Waiting returns when a step says that it waits for what.
func (s *Stage) Waiting(what string) {
	s.Helper()
	timer := time.AfterFunc(runPatience, s.heard.Broadcast)
	defer timer.Stop()
	end := time.Now().Add(runPatience)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for !waited(s.Events, what) {
		if time.Now().After(end) {
			s.Fatalf("it never waited for %q, but: %v", what, s.Events)
		}
		s.heard.Wait()
	}
}

// Change changes what is played, while Mu is held.
func (s *Stage) Change(do func()) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	do()
}

// Did runs a plan of one phase, and returns the IDs of the steps that did something, in
// alphabetical order. The runner's Sink is to be Hear.
func (s *Stage) Did(r *engine.Runner, phase string, groups []engine.Group) ([]string, error) {
	s.Change(func() { s.Events = nil })
	err := r.Run(s.Context(), &engine.Plan{Name: "m", Phases: []engine.Phase{{Name: phase, Groups: groups}}})
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var ids []string
	for _, e := range s.Events {
		if e.Kind == engine.StepDone {
			ids = append(ids, e.Step)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// Granted waits until the API server has heard that a user, whose cluster it is, has rights: the
// authorizer watches roles.
func (s *Stage) Granted(to *cluster.Cluster, rights []access.Right) {
	s.Helper()
	s.Until("the rights", func() bool {
		answers, err := to.Access(s.Context(), rights)
		return err == nil && !slices.ContainsFunc(answers, func(a access.Answer) bool { return !a.Allowed })
	})
}

// waited reports whether a step said that it waits for what.
func waited(events []engine.Event, what string) bool {
	return slices.ContainsFunc(events, func(e engine.Event) bool {
		return (e.Kind == engine.StepWaiting || e.Kind == engine.StepRetried) && strings.Contains(e.Error, what)
	})
}

// Ready are the ready pods of an app that are not about to end.
func (s *Stage) Ready(app string) []*corev1.Pod {
	s.Helper()
	all := &corev1.PodList{}
	s.Must(s.client.List(s.Context(), all, client.InNamespace(Namespace), client.MatchingLabels{"app": app}))
	var out []*corev1.Pod
	for i := range all.Items {
		if p := &all.Items[i]; connectivity.Ready(p) && p.DeletionTimestamp.IsZero() {
			out = append(out, p)
		}
	}
	return out
}

// Named is in the Namespace, and of the app of its name.
func Named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{"app": name}}
}

// Selector is of the pods of an app.
func Selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// Template makes pods of an app.
func Template(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
}

// Create makes a workload, and returns when n pods of it are ready.
func (s *Stage) Create(o client.Object, n int) {
	s.Helper()
	s.Must(s.client.Create(s.Context(), o))
	s.Until("pods of "+o.GetName(), func() bool { return len(s.Ready(o.GetName())) == n })
}

// Deployment makes one of n pods, each of which is changed.
func (s *Stage) Deployment(name string, n int32, change ...func(*corev1.PodSpec)) *appsv1.Deployment {
	s.Helper()
	t := Template(name)
	for _, c := range change {
		c(&t.Spec)
	}
	d := &appsv1.Deployment{
		ObjectMeta: Named(name), Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: Selector(name), Template: t},
	}
	s.Create(d, int(n))
	return d
}

// StatefulSet makes one of n pods.
func (s *Stage) StatefulSet(name string, n int32) {
	s.Helper()
	s.Create(&appsv1.StatefulSet{
		ObjectMeta: Named(name), Spec: appsv1.StatefulSetSpec{Replicas: &n, Selector: Selector(name), Template: Template(name)},
	}, int(n))
}

// DaemonSet makes one for a cluster of n nodes.
func (s *Stage) DaemonSet(name string, n int) {
	s.Helper()
	s.Create(&appsv1.DaemonSet{
		ObjectMeta: Named(name), Spec: appsv1.DaemonSetSpec{Selector: Selector(name), Template: Template(name)},
	}, n)
}

// Budget allows an app to have no fewer than so many pods, and returns when its controller has
// counted them.
func (s *Stage) Budget(app string, least int) *policyv1.PodDisruptionBudget {
	s.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: Named(app),
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: Selector(app), MinAvailable: ptr.To(intstr.FromInt(least))},
	}
	s.Must(s.client.Create(s.Context(), b))
	s.Until("budget "+app, func() bool {
		s.Must(s.client.Get(s.Context(), client.ObjectKeyFromObject(b), b))
		return b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0
	})
	return b
}

// Clear deletes all objects of some kinds, finalizers or not, and returns when there are none.
func Clear(t *testing.T, c client.Client, kinds ...client.ObjectList) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 20*time.Millisecond, Patience, true,
		func(ctx context.Context) (bool, error) {
			left := 0
			for _, kind := range kinds {
				n, err := deleteAll(ctx, c, kind)
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
}

func deleteAll(ctx context.Context, c client.Client, list client.ObjectList) (int, error) {
	if err := c.List(ctx, list); err != nil {
		return 0, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return 0, err
	}
	for _, item := range items {
		o := item.(client.Object)
		if len(o.GetFinalizers()) > 0 {
			bare := o.DeepCopyObject().(client.Object)
			bare.SetFinalizers(nil)
			_ = c.Patch(ctx, bare, client.MergeFrom(o)) // the next round looks again
		}
		err := c.Delete(ctx, o, client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("%s: %w", o.GetName(), err)
		}
	}
	return len(items), nil
}
