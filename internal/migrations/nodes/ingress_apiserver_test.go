//go:build apiserver && long

package nodes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
)

// requireLocal fails the test unless a Service is as it was made.
func (f *fixture) requireLocal(svc *corev1.Service, when string) {
	f.Helper()
	now := &corev1.Service{}
	f.Must(server.Get(f.Context(), client.ObjectKeyFromObject(svc), now))
	if !local(now) || now.Spec.HealthCheckNodePort != svc.Spec.HealthCheckNodePort ||
		now.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" {
		f.Errorf("%s the Service has policy %s, health-check port %d (it had %d) and annotations %v", when, now.Spec.ExternalTrafficPolicy,
			now.Spec.HealthCheckNodePort, svc.Spec.HealthCheckNodePort, now.Annotations)
	}
}

// until runs apply until a step has begun, and ends it there.
func (f *fixture) until(step string) {
	f.Helper()
	ctx, stop := context.WithCancel(f.Context())
	defer stop()
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		if e.Step == step && e.Kind == engine.StepStarted {
			stop()
		}
	}
	_, err := f.job.Apply(ctx, f.runner)
	f.runner.Sink = f.take
	if !errors.Is(err, engine.ErrInterrupted) {
		f.Fatalf("it was to be cut off in step %s, and ended with %v", step, err)
	}
}

// TestIngressIsLocalFirst: ingress has moved and its Service is as it was when the first node is
// emptied, by a restore that waits until new nodes serve it and load balancers have left the old
// ones.
func TestIngressIsLocalFirst(t *testing.T) {
	f := setup(t, atFinish)
	svc := f.populate()
	f.until("drain/a")
	f.requireLocal(svc, "before the first node is emptied")
	f.on("c d", "web", 3)
	f.on("a b", "db", 2)
	var began []string
	f.Mu.Lock()
	for _, e := range f.Events {
		if e.Kind == engine.StepStarted && e.Phase == phaseDrain {
			began = append(began, e.Step)
		}
	}
	f.Mu.Unlock()
	order := []int{}
	for _, step := range []string{"ahead/a", "ingress/served", "exclude/ahead/a", "settle/" + moveOfIngress, "ingress-back/early", "drain/a"} {
		order = append(order, slices.Index(began, step))
	}
	if !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("steps began in the order %v: %v", order, began)
	}
	f.Must(f.apply())
	f.allOn("c d")
	f.requireLocal(svc, "at the end")
}

// TestRollbackAfterIngress goes back where ingress alone has moved: nothing is left of it.
func TestRollbackAfterIngress(t *testing.T) {
	f := setup(t)
	svc := f.populate()
	f.until("drain/a")
	f.Must(f.rollback())
	f.allOn("a b")
	f.requireLocal(svc, "after rollback")
	if got := f.nodes(); got != "a b c:NoSchedule d:NoSchedule" {
		t.Errorf("nodes after rollback: %s", got)
	}
	for _, name := range []string{"a", "b"} {
		n, err := cordon.Read(t.Context(), f.job.Tools.Cluster, name)
		f.Must(err)
		if _, has := n.Labels[corev1.LabelNodeExcludeBalancers]; has {
			t.Errorf("load balancers are kept off node %s", name)
		}
	}
}

// TestIngressKilledAnywhere cuts apply off after every step by which ingress moves, as a killed
// process would be, and carries on. A Service that is Local again is not opened a second time,
// although it is named.
func TestIngressKilledAnywhere(t *testing.T) {
	f := setup(t, atFinish, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Ingress.Services = []string{"shop/web"}
		m.Spec.Nodes.Canary.Mode = v1alpha1.PodCanaryDisabled
	})
	svc := f.populate()
	done := map[string]bool{}
	for range 30 {
		ctx, stop := context.WithCancel(t.Context())
		f.runner.Sink = func(e engine.Event) {
			f.take(e)
			if e.Kind == engine.StepDone && e.Phase == phaseDrain && !done[e.Step] &&
				!strings.Contains(strings.Join(keys(done), " "), "drain/") {
				done[e.Step] = true
				stop()
			}
		}
		_, err := f.job.Apply(ctx, f.runner)
		stop()
		if done["ingress-back/early"] {
			f.requireLocal(svc, "once it has been restored")
		}
		if err == nil {
			break
		}
		if !errors.Is(err, engine.ErrInterrupted) {
			t.Fatal(err)
		}
	}
	for _, step := range []string{"ahead/a", "exclude/ahead/a", "exclude/ahead/b", "ingress-back/early", "drain/a"} {
		if !done[step] {
			t.Errorf("it was never cut off after step %s, but after %v", step, keys(done))
		}
	}
	f.allOn("c d")
	f.requireLocal(svc, "at the end")
}

func keys(of map[string]bool) (all []string) {
	for key := range of {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}
