//go:build apiserver && long

package cni

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// rolling is setup with the rights that it takes to recreate all pods once more.
func rolling(t *testing.T, change ...func(*v1alpha1.Migration)) *fixture {
	t.Helper()
	f := setup(t, change...)
	once := *f.job
	once.Spec.Again = 1
	f.operator, f.requests = migrationtest.Operator(t, server, once.roles())
	f.with(f.job.Migration)
	return f
}

// onceMore asks for all pods to be recreated for the nth time, as an operator would: by the file,
// and apply.
func (f *fixture) onceMore(n int32) {
	f.Helper()
	m := f.job.Migration.DeepCopy()
	m.Spec.CNI.Again = n
	f.with(m)
	f.Events = nil
}

// tick has the API server's clock move on, whose times have whole seconds: what is made from now on
// is younger than what is there.
func tick() { <-time.After(time.Until(time.Now().Truncate(time.Second).Add(1100 * time.Millisecond))) }

func (f *fixture) uids(app string) []types.UID {
	f.Helper()
	var all []types.UID
	for _, p := range f.pods("shop", app) {
		all = append(all, p.UID)
	}
	slices.Sort(all)
	return all
}

// TestRolledOnceMore: every pod with an owner is made once more within its budget, the cluster is
// as whole as before, and nothing of the switch is done again. The same number does nothing more,
// and the next one does.
func TestRolledOnceMore(t *testing.T) {
	f := rolling(t)
	f.deployment("web", 3)
	f.bare("tool")
	two := intstr.FromInt32(2)
	f.Must(server.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &two, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}))
	f.Must(f.forward())
	for n := int32(1); n <= 2; n++ {
		tick()
		web, tool := f.uids("web"), f.uids("tool")
		f.onceMore(n)
		f.Must(f.forward())
		f.moved("10.245.0.0/16", "a", "b")
		now := f.uids("web")
		if slices.ContainsFunc(web, func(u types.UID) bool { return slices.Contains(now, u) }) {
			t.Errorf("time %d: pods %v, before %v", n, now, web)
		}
		if !slices.Equal(f.uids("tool"), tool) {
			t.Errorf("time %d: the pod without an owner was recreated", n)
		}
		st := f.status()
		if st.Phase != v1alpha1.PhaseMoved || st.CNI.Again == nil || st.CNI.Again.Number != n || st.LastError != "" {
			t.Errorf("time %d: status %+v %+v", n, st, st.CNI)
		}
		if !f.did("restart/Deployment/shop/web") || !f.did("residue/a") || !f.did("matrix") {
			t.Errorf("time %d: not restarted, or not verified", n)
		}
		for _, e := range f.Events {
			if e.Kind == engine.StepDone &&
				(strings.HasPrefix(e.Step, "clean/") || strings.HasPrefix(e.Step, "remove/") || e.Step == "begin") {
				t.Errorf("time %d: step %s", n, e.Step)
			}
		}
		f.Events = nil
		f.Must(f.forward())
		for _, e := range f.Events {
			if e.Kind == engine.StepDone {
				t.Errorf("time %d: a second apply did %s", n, e.Step)
			}
		}
	}
	f.Must(f.job.Rollback(t.Context(), f.runner)) // it is as open as before
	if st := f.status(); st.Phase != v1alpha1.PhaseRolledBack || st.CNI != nil {
		t.Errorf("status after rollback: %+v, %+v", st, st.CNI)
	}
}

// TestRollOnceMoreGoesOn: a run that is cut off after it began goes on with the pods of before that
// moment, and leaves those alone that have been made since.
func TestRollOnceMoreGoesOn(t *testing.T) {
	f := rolling(t)
	f.deployment("web", 2)
	f.deployment("shop", 1)
	f.Must(f.forward())
	tick()
	shop, web := f.uids("shop"), f.uids("web")
	f.onceMore(1)
	ctx, cut := context.WithCancel(t.Context())
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		if e.Kind == engine.StepDone && e.Step == "again/begin" {
			cut()
		}
	}
	if _, err := f.job.Apply(ctx, f.runner); err == nil {
		t.Fatal("it was not cut off")
	}
	began := f.status().CNI.Again
	if began == nil || began.Number != 1 || !slices.Equal(f.uids("shop"), shop) {
		t.Fatalf("it had begun: %+v", began)
	}
	f.runner.Sink = f.take
	tick()
	p := f.pods("shop", "web")[0]
	f.Must(server.Delete(t.Context(), &p)) // its successor is young enough
	f.Until("its successor", func() bool { return len(f.uids("web")) == 2 })
	f.onceMore(1)
	f.Must(f.forward())
	if again := f.status().CNI.Again; !again.Since.Equal(&began.Since) {
		t.Errorf("it began once more: %+v, %+v", began, again)
	}
	for app, before := range map[string][]types.UID{"shop": shop, "web": web} {
		now := f.uids(app)
		if slices.ContainsFunc(before, func(u types.UID) bool { return slices.Contains(now, u) }) {
			t.Errorf("%s: pods %v, before %v", app, now, before)
		}
	}
}

// TestNodesAreReplacedOnceMore: the same action is asked for the nodes that there are by then.
func TestNodesAreReplacedOnceMore(t *testing.T) {
	c := &cloud{}
	f := rolling(t, replacing(patience, c.action(t, patience)))
	bring := func(old, fresh []string) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := f.join(ctx, fresh...); err != nil {
				return err
			}
			return f.leave(ctx, old...)
		}
	}
	f.deployment("web", 3)
	f.bare("tool")
	c.do = bring([]string{"a", "b"}, []string{"c", "d"})
	f.Must(f.forward())
	tick()
	tool := f.pods("shop", "tool")[0]
	f.Must(server.Delete(t.Context(), &tool)) // it would end with its node
	f.onceMore(1)
	p, err := f.job.Look(t.Context())
	f.Must(err)
	if migrationtest.Says(p.Found(), "RP5310", "is not recreated") {
		t.Errorf("findings: %+v", p.Found())
	}
	c.do = bring([]string{"c", "d"}, []string{"e", "f"})
	f.Must(f.forward())
	for _, p := range f.pods("shop", "web") {
		if !slices.Contains([]string{"e", "f"}, p.Spec.NodeName) {
			t.Errorf("pod %s is on node %s", p.Name, p.Spec.NodeName)
		}
	}
	if len(c.asked) != 2 || !slices.Equal(c.asked[1].Nodes, []string{"c", "d"}) || len(f.pods("shop", "web")) != 3 {
		t.Errorf("the action was asked for %+v", c.asked)
	}
	f.Must(f.forward())
	if len(c.asked) != 2 {
		t.Error("the action was called again")
	}
	if nodes := (&corev1.NodeList{}); server.List(t.Context(), nodes) != nil || len(nodes.Items) != 2 {
		t.Errorf("there are %d nodes", len(nodes.Items))
	}
}
