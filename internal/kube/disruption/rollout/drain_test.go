//go:build apiserver && long

package rollout

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func closing() corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintMoving, Value: "pods", Effect: corev1.TaintEffectNoSchedule}
}

// on makes a pod that is ready on a node.
func (f *fixture) on(node, name string, change func(*corev1.Pod), owner ...metav1.OwnerReference) *corev1.Pod {
	f.Helper()
	p := &corev1.Pod{ObjectMeta: f.meta(name), Spec: template().Spec}
	p.Spec.NodeName, p.OwnerReferences = node, owner
	if change != nil {
		change(p)
	}
	f.must(f.Create(f.Context(), p))
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	f.must(f.Status().Update(f.Context(), p))
	return p
}

func (f *fixture) scaled(rs *appsv1.ReplicaSet, replicas int32) {
	f.Helper()
	rs.Spec.Replicas = &replicas
	f.must(f.Update(f.Context(), rs))
}

func TestDrainOneByOne(t *testing.T) {
	f := setup(t)
	const node = "onebyone"
	rs := f.replicaSet("pair")
	f.scaled(rs, 2)
	owner := controlledBy(kindReplicaSet, rs)
	first, second := f.on(node, "pair-a", nil, owner), f.on(node, "pair-b", nil, owner)
	step := f.tools.Drain(Leaving{Node: node, Taint: closing()})
	f.state(step, engine.Pending)

	ended := f.start(t.Context(), step)
	f.waiting("has not ended yet")
	f.remove(first)
	f.waiting("ReplicaSet " + f.ns + "/pair has 1 of 2 pods ready")
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(second), second))
	if second.DeletionTimestamp != nil {
		t.Error("the second pod was sent away before the first was replaced")
	}
	f.on("elsewhere", "pair-c", nil, owner)
	f.waiting("pair-b has not ended yet")
	f.remove(second)
	f.must(<-ended)
	f.state(step, engine.Done)
}

// TestDrainPaced: the pods of two owners could leave together, and the second one waits until the
// first one's is replaced.
func TestDrainPaced(t *testing.T) {
	f := setup(t)
	const node = "paced"
	owners := map[string]metav1.OwnerReference{}
	pods := map[string]*corev1.Pod{}
	for _, name := range []string{"alpha", "beta"} {
		rs := f.replicaSet(name)
		f.scaled(rs, 2)
		owners[name] = controlledBy(kindReplicaSet, rs)
		f.on("elsewhere", name+"-x", nil, owners[name])
		pods[name] = f.on(node, name+"-a", nil, owners[name])
	}
	broken := f.on(node, "a-broken", nil, controlledBy(kindReplicaSet, f.replicaSet("broken"))) // it goes first, and is not waited for
	broken.Status.Conditions[0].Status = corev1.ConditionFalse
	f.must(f.Status().Update(t.Context(), broken))
	stays := func(p *corev1.Pod) {
		f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		if p.DeletionTimestamp != nil {
			t.Error("the other owner's pod was sent away before the first was replaced")
		}
	}

	ended := f.start(t.Context(), f.tools.Drain(Leaving{Node: node, Taint: closing(), AtOnce: 1}))
	f.waiting("a-broken has not ended yet")
	f.remove(broken)
	f.waiting("alpha-a has not ended yet")
	stays(pods["beta"])
	f.remove(pods["alpha"])
	f.waiting("beta-a goes after others, and what replaces " + f.ns + "/alpha-a is not ready")
	stays(pods["beta"])
	f.on("elsewhere", "alpha-b", nil, owners["alpha"])
	f.waiting("beta-a has not ended yet")
	f.remove(pods["beta"])
	f.must(<-ended)
}

func TestDrainWhereNothingCanBeReplaced(t *testing.T) {
	f := setup(t)
	const node = "spread"
	rs := f.replicaSet("trio")
	f.scaled(rs, 3)
	owner := controlledBy(kindReplicaSet, rs)
	here := f.on(node, "trio-a", nil, owner)
	f.on("elsewhere", "trio-b", nil, owner)
	waits := &corev1.Pod{ObjectMeta: f.meta("trio-c"), Spec: template().Spec}
	waits.OwnerReferences = []metav1.OwnerReference{owner}
	f.must(f.Create(t.Context(), waits))
	ended := f.start(t.Context(), f.tools.Drain(Leaving{Node: node, Taint: closing()}))
	f.waiting("has 2 of 3 pods ready")
	waits.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
	}}
	f.must(f.Status().Update(t.Context(), waits))
	f.waiting("trio-a has not ended yet")
	f.remove(here)
	f.must(<-ended)
}

func TestDrainKeepsTheLastOne(t *testing.T) {
	f := setup(t)
	const node = "last"
	rs := f.replicaSet("two")
	f.scaled(rs, 2)
	owner := controlledBy(kindReplicaSet, rs)
	here := f.on(node, "two-a", nil, owner)
	waits := &corev1.Pod{ObjectMeta: f.meta("two-b"), Spec: template().Spec}
	waits.OwnerReferences = []metav1.OwnerReference{owner}
	f.must(f.Create(t.Context(), waits))
	waits.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
	}}
	f.must(f.Status().Update(t.Context(), waits))
	ctx, stop := context.WithCancel(t.Context())
	ended := f.start(ctx, f.tools.Drain(Leaving{Node: node, Taint: closing()}))
	f.waiting("has 1 of 2 pods ready")
	stop()
	if <-ended == nil {
		t.Error("it was cut off, and says that it is done")
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(here), here))
	if here.DeletionTimestamp != nil {
		t.Error("the only pod that is ready was sent away")
	}
}

func TestDrainLeavesWhatStays(t *testing.T) {
	f := setup(t)
	const node = "stays"
	set := &appsv1.DaemonSet{ObjectMeta: f.meta("agents"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	f.must(f.Create(t.Context(), set))
	owner := controlledBy(KindDaemonSet, set)
	f.on(node, "on-the-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	f.on(node, "tolerates", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}, owner)
	f.on(node, "arrived", nil)
	step := f.tools.Drain(Leaving{Node: node, Taint: closing(), Stays: func(p *corev1.Pod) bool { return p.Name == "arrived" }})
	f.state(step, engine.Done)

	goes := f.on(node, "does-not-tolerate", nil, owner)
	f.state(step, engine.Pending)
	ended := f.start(t.Context(), step)
	f.waiting("does-not-tolerate has not ended yet")
	f.remove(goes)
	f.must(<-ended)
}

// TestDrainKeepsTheLastOfADaemonSet: its pod on the node before is still starting. One that is
// broken for long holds nothing up while another one is ready.
func TestDrainKeepsTheLastOfADaemonSet(t *testing.T) {
	f := setup(t)
	const node = "after-another"
	set := &appsv1.DaemonSet{ObjectMeta: f.meta("everywhere"), Spec: appsv1.DaemonSetSpec{Selector: selector(), Template: template()}}
	f.must(f.Create(t.Context(), set))
	owner := controlledBy(KindDaemonSet, set)
	for name, taints := range map[string][]corev1.Taint{
		node: {closing()}, "before": {{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}, "broken": nil,
		"apart": {{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		f.must(f.Create(t.Context(), n))
		n.Spec.Taints = taints // without that of a node that is not ready yet
		f.must(f.Update(t.Context(), n))
		t.Cleanup(func() { f.must(f.Delete(context.WithoutCancel(t.Context()), n)) })
	}
	ready := func(p *corev1.Pod, is corev1.ConditionStatus) {
		t.Helper()
		p.Status.Conditions[0].Status = is
		f.must(f.Status().Update(t.Context(), p))
	}
	here := f.on(node, "everywhere-here", nil, owner)
	before, broken := f.on("before", "everywhere-before", nil, owner), f.on("broken", "everywhere-broken", nil, owner)
	ready(before, corev1.ConditionFalse)
	ready(broken, corev1.ConditionFalse)

	tools, later := f.tools, time.Duration(0)
	tools.Timeout, tools.Now = time.Minute, func() time.Time { return time.Now().Add(later) }
	ctx, stop := context.WithCancel(t.Context())
	ended := f.start(ctx, tools.Drain(Leaving{Node: node, Taint: closing()}))
	f.waiting("has 0 of 2 pods ready on other nodes")
	stop()
	<-ended
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(here), here))
	if here.DeletionTimestamp != nil {
		t.Error("the only pod that is ready was sent away")
	}
	ready(before, corev1.ConditionTrue)
	ctx, stop = context.WithCancel(t.Context())
	ended = f.start(ctx, tools.Drain(Leaving{Node: node, Taint: closing()}))
	f.waiting("has 1 of 2 pods ready on other nodes")
	stop()
	<-ended
	later = time.Hour
	ended = f.start(t.Context(), tools.Drain(Leaving{Node: node, Taint: closing()}))
	f.waiting("everywhere-here has not ended yet")
	f.remove(here)
	f.must(<-ended)
}

func TestDrainRestartsSingles(t *testing.T) {
	f := setup(t)
	const node = "single"
	d := f.deployment()
	rs := f.replicaSet("web-1", controlledBy(KindDeployment, d))
	p := f.on(node, "web-1-a", nil, controlledBy(kindReplicaSet, rs))
	ended := f.start(t.Context(), f.tools.Drain(Leaving{Node: node, Taint: closing()}))
	deadline := time.After(patience)
	for f.restartedAt(d) == "" {
		select {
		case err := <-ended:
			t.Fatalf("ended before the restart: %v", err)
		case <-deadline:
			t.Fatal("it was not restarted")
		case <-f.events:
		}
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	if p.DeletionTimestamp != nil {
		t.Error("the only pod was sent away before there is another")
	}
	f.remove(p) // as its Deployment does when the new one is ready
	f.must(<-ended)
}

// TestDrainRestartsSinglesAgain empties the node that the pod of an earlier restart has come to:
// of that restart the template has the time in full, and the pod the second.
func TestDrainRestartsSinglesAgain(t *testing.T) {
	f := setup(t)
	const node = "again"
	d := f.deployment()
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	rs := f.replicaSet("web-2", controlledBy(KindDeployment, d))
	p := f.on(node, "web-2-a", nil, controlledBy(kindReplicaSet, rs))
	before := p.CreationTimestamp.Add(900 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	d.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationRestartedAt: before}
	f.must(f.Update(t.Context(), d))
	ended := f.start(t.Context(), f.tools.Drain(Leaving{Node: node, Taint: closing()}))
	deadline := time.After(patience)
	for f.restartedAt(d) == before {
		select {
		case err := <-ended:
			t.Fatalf("ended before the restart: %v", err)
		case <-deadline:
			t.Fatal("it was not restarted")
		case <-f.events:
		case <-time.After(50 * time.Millisecond):
		}
	}
	f.remove(p)
	f.must(<-ended)
}

func TestDrainOfBarePods(t *testing.T) {
	f := setup(t)
	const node = "bare"
	p := f.on(node, "alone", nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := f.start(ctx, f.tools.Drain(Leaving{Node: node, Taint: closing(), Bare: v1alpha1.BarePodsReport}))
	f.waiting("its end is waited for")
	stop()
	if <-ended == nil {
		t.Error("it was cut off, and says that it is done")
	}
	ended = f.start(t.Context(), f.tools.Drain(Leaving{Node: node, Taint: closing(), Bare: v1alpha1.BarePodsEvict}))
	f.waiting("has not ended yet")
	f.remove(p)
	f.must(<-ended)
}

// TestDrainStandsStill gives up when no pod leaves: soon, unless all that is left ends by itself.
func TestDrainStandsStill(t *testing.T) {
	f := setup(t)
	const node = "still"
	now := time.Now()
	tools := f.tools
	tools.Timeout, tools.Now = time.Minute, func() time.Time { return now }
	rs := f.replicaSet("short")
	f.scaled(rs, 2) // and has one
	f.on(node, "alone", nil)
	waits := f.on(node, "short-a", nil, controlledBy(kindReplicaSet, rs))
	step := tools.Drain(Leaving{Node: node, Taint: closing(), Bare: v1alpha1.BarePodsReport, Patience: time.Hour})
	for _, tt := range []struct {
		later time.Duration
		left  bool
		fails bool
	}{
		{0, false, false},
		{59 * time.Second, false, false},
		{2 * time.Second, false, true},
		{0, true, false},
		{59 * time.Minute, false, false},
		{2 * time.Minute, false, true},
	} {
		if tt.left {
			f.must(f.Delete(t.Context(), waits, client.GracePeriodSeconds(0)))
		}
		now = now.Add(tt.later)
		err := step.Do(t.Context())
		if err == nil || engine.Retryable(err) == tt.fails {
			t.Errorf("%s later: %v", tt.later, err)
		}
	}
}

// TestDrainOfWhatEnds: a node that is about to end keeps nothing but what comes with any node, and
// a pod that was named goes although its owner is short of pods.
func TestDrainOfWhatEnds(t *testing.T) {
	f := setup(t)
	f.tools.Client = f.Server // to delete a pod takes a right that to evict it does not
	const node = "ends"
	rs := f.replicaSet("short")
	f.scaled(rs, 3)
	named := f.on(node, "short-a", nil, controlledBy(kindReplicaSet, rs))
	host := f.on(node, "on-host", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	step := f.tools.Drain(Leaving{
		Node: node, Taint: closing(), Hosts: true, Bare: v1alpha1.BarePodsEvict,
		Forced: func(p *corev1.Pod) bool { return p.Name == "short-a" },
	})
	ended := f.start(t.Context(), step)
	f.waiting("has not ended yet")
	f.remove(named)
	f.remove(host)
	f.must(<-ended)
	f.state(step, engine.Done)
}

// TestDrainOfADeadNode: pods that were told to end and whose time is over are not waited for where
// no kubelet answers.
func TestDrainOfADeadNode(t *testing.T) {
	f := setup(t)
	const node = "dead"
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	f.must(f.Create(t.Context(), n))
	t.Cleanup(func() { _ = f.Delete(context.WithoutCancel(t.Context()), n) })
	now := time.Now()
	tools := f.tools
	tools.Now = func() time.Time { return now }
	p := f.on(node, "alone", nil)
	step := tools.Drain(Leaving{Node: node, Taint: closing(), Bare: v1alpha1.BarePodsEvict})
	ready := func(is corev1.ConditionStatus) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is}}
		f.must(f.Status().Update(t.Context(), n))
	}
	ready(corev1.ConditionUnknown)
	f.state(step, engine.Pending)
	f.must(f.Delete(t.Context(), p, client.GracePeriodSeconds(30)))
	f.state(step, engine.Pending)
	now = now.Add(time.Hour)
	ready(corev1.ConditionTrue)
	f.state(step, engine.Pending)
	ready(corev1.ConditionUnknown)
	f.state(step, engine.Done)
	if note := step.(engine.Noter).Note(); !strings.Contains(note, "node dead is not ready") {
		t.Errorf("it says: %s", note)
	}
}
