//go:build apiserver

package noderanges

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
)

// troubled is a ciliumWorld that moves by itself: its operator, its agent and the node's kubelet
// are played beside what is tested.
type troubled struct {
	*ciliumWorld
	// sick keeps agents that start from becoming ready, mute from saying what they have taken, and
	// away the operator from doing anything.
	sick, mute, away atomic.Bool
	agents           int
	operators        int
	// spoken are agents that have written to the CiliumNode since they started.
	spoken map[types.UID]bool
	// deadline is that of steps that have none of their own.
	deadline time.Duration
	// ended is when an agent of a pool was missed first, latest what it had started with.
	ended  time.Time
	latest string
}

func newTroubled(t *testing.T, pool string) *troubled {
	t.Helper()
	w := &troubled{ciliumWorld: newCiliumWorld(t), spoken: map[types.UID]bool{}, latest: formerRange, deadline: time.Minute}
	w.mute.Store(true)
	mode := ciliumipam.ClusterPool
	if w.node.pool = pool; pool != "" {
		mode = ciliumipam.MultiPool
		w.allocated(formerOwn, formerRange)
		w.complain("")
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{
		ciliumipam.ModeKey: mode, ciliumipam.PoolKey: "10.245.0.0/16", ciliumipam.SizeKey: "24",
	}}
	cm.Annotations = map[string]string{v1alpha1.AnnotationCiliumPool: `{"cluster-pool-ipv4-cidr":"10.244.0.0/16"}`}
	must(t, w.c.Create(t.Context(), cm))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = w.turn(ctx) // what a conflict has hindered comes in the next turn
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return w
}

func (w *troubled) turn(ctx context.Context) error {
	return errors.Join(w.playOperator(ctx), w.playKubelet(ctx), w.playAgent(ctx))
}

// playOperator forgets what it has reserved with its pod.
func (w *troubled) playOperator(ctx context.Context) error {
	pods, err := operatorPods(ctx, w.c)
	if err != nil {
		return err
	}
	if len(pods) == 0 && !w.away.Load() {
		w.operators++
		w.reserved = nil
		return w.c.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: fmt.Sprintf("operator-%d", w.operators), Labels: map[string]string{"io.cilium/app": "operator"},
			},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: ptr.To(false),
				TerminationGracePeriodSeconds: ptr.To[int64](0),
			},
		})
	}
	if w.node.pool != "" { // it follows what CiliumNodes say
		return nil
	}
	n, err := ciliumipam.Get(ctx, w.c, "a", "")
	if err == nil && n == nil {
		w.reserved = nil
	}
	if err != nil || n == nil || n.Ignored || w.away.Load() {
		return err
	}
	says := "allocator not configured for the requested CIDR"
	switch {
	case w.reserved != nil && !slices.Equal(n.PodCIDRs, w.reserved):
		return n.Give(ctx, w.c, w.reserved)
	case slices.Equal(n.PodCIDRs, []string{nextRange}):
		w.reserved, says = n.PodCIDRs, ""
	}
	if n.Problem == says {
		return nil
	}
	u := n.Object().DeepCopyObject().(*unstructured.Unstructured)
	if err := unstructured.SetNestedField(u.Object, says, "status", "ipam", "operator-status", "error"); err != nil {
		return err
	}
	return w.c.Status().Update(ctx, u)
}

// playKubelet makes pods of replumb ready, and ends those that are to end.
func (w *troubled) playKubelet(ctx context.Context) error {
	all := &corev1.PodList{}
	if err := w.c.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
		return err
	}
	for i := range all.Items {
		p := &all.Items[i]
		if !p.DeletionTimestamp.IsZero() {
			return w.c.Delete(ctx, p, client.GracePeriodSeconds(0))
		}
		if err := w.beReady(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (w *troubled) beReady(ctx context.Context, p *corev1.Pod) error {
	if len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Status == corev1.ConditionTrue {
		return nil
	}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	return w.c.Status().Update(ctx, p)
}

// playAgent starts the agent anew where it is gone. One that runs names its address in the range
// with which it has started, and does so again whenever annotations of its Node change, which it
// copies.
func (w *troubled) playAgent(ctx context.Context) error {
	all := &corev1.PodList{}
	if err := w.c.List(ctx, all, client.InNamespace("kube-system"), client.MatchingFields{"spec.nodeName": "a"}); err != nil {
		return err
	}
	n, err := ciliumipam.Get(ctx, w.c, "a", w.node.pool)
	if err != nil {
		return err
	}
	if len(all.Items) == 0 && n != nil {
		return w.startAgent(ctx, n)
	}
	for i := range all.Items {
		p := &all.Items[i]
		sick := w.sick.Load() && p.Annotations != nil
		if !sick {
			err = w.beReady(ctx, p)
		}
		if !sick || !w.mute.Load() {
			err = errors.Join(err, w.publish(ctx, n, p))
		}
	}
	return err
}

// startAgent has the last words of the one of a pool that has ended, which is later than replumb
// ends it, and starts another with the range that the CiliumNode has a second later.
func (w *troubled) startAgent(ctx context.Context, n *ciliumipam.CiliumNode) error {
	if w.node.pool != "" && w.ended.IsZero() {
		if err := w.say(ctx, n, w.latest, true); err != nil {
			return err
		}
		w.ended = time.Now()
	}
	if w.node.pool != "" && time.Since(w.ended) < time.Second {
		return nil
	}
	w.agents++
	w.ended, w.latest = time.Time{}, n.PodCIDRs[0]
	pod := agentPod(fmt.Sprintf("again-%d", w.agents))
	pod.Annotations = map[string]string{"started-with": w.latest}
	return w.c.Create(ctx, pod)
}

func (w *troubled) publish(ctx context.Context, n *ciliumipam.CiliumNode, agent *corev1.Pod) error {
	found, err := cordon.Read(ctx, w.c, "a")
	if err != nil || n == nil {
		return err
	}
	has := cmp.Or(agent.Annotations["started-with"], formerRange)
	silent := w.spoken[agent.UID] && maps.Equal(n.Object().GetAnnotations(), found.Annotations)
	if silent && (w.node.pool == "" || n.Lives(netip.MustParsePrefix(has))) {
		return nil
	}
	err = w.say(ctx, n, has, !w.spoken[agent.UID])
	w.spoken[agent.UID] = err == nil
	return err
}

// say is what an agent writes that has started with a range. It may give up all others of a pool.
func (w *troubled) say(ctx context.Context, n *ciliumipam.CiliumNode, has string, alone bool) error {
	found, err := cordon.Read(ctx, w.c, "a")
	if err != nil {
		return err
	}
	own := formerOwn
	if r := netip.MustParsePrefix(has); !r.Contains(netip.MustParseAddr(own)) {
		own = r.Addr().Next().String()
	}
	u := n.Object().DeepCopyObject().(*unstructured.Unstructured)
	u.SetAnnotations(found.Annotations)
	addresses := []any{map[string]any{"type": "InternalIP", "ip": "192.0.2.1"}, map[string]any{"type": "CiliumInternalIP", "ip": own}}
	if err := unstructured.SetNestedSlice(u.Object, addresses, "spec", "addresses"); err != nil {
		return err
	}
	if w.node.pool != "" && alone {
		allocated := []any{map[string]any{"pool": w.node.pool, "cidrs": []any{has}}}
		if err := unstructured.SetNestedSlice(u.Object, allocated, "spec", "ipam", "pools", "allocated"); err != nil {
			return err
		}
	}
	return w.c.Update(ctx, u)
}

// planner looks at the cluster as it is now.
func (w *troubled) planner(hold bool) *Planner {
	w.Helper()
	nodes := &corev1.NodeList{}
	must(w.T, w.c.List(w.Context(), nodes))
	cm := &corev1.ConfigMap{}
	must(w.T, w.c.Get(w.Context(), client.ObjectKey{Namespace: "kube-system", Name: "cilium-config"}, cm))
	shared := found("10.245.0.0/16", nodes.Items...)
	shared.Spec.Name = "m"
	shared.Spec.Roll.Timeout = &metav1.Duration{Duration: time.Minute}
	shared.Spec.Roll.JobWait = &metav1.Duration{Duration: time.Minute}
	shared.Spec.Common.Image = "replumb"
	if shared.Spec.Tunnels = v1alpha1.TunnelsLeave; hold {
		shared.Spec.Tunnels = v1alpha1.TunnelsHold
	}
	shared.Workloads.DaemonSets = []appsv1.DaemonSet{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium"},
		Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cilium-agent"}}}}},
	}}
	n, err := ciliumipam.Get(w.Context(), w.c, "a", w.node.pool)
	must(w.T, err)
	state := NewCilium(cm, map[string]*ciliumipam.CiliumNode{"a": n})
	if w.node.pool != "" {
		state.TakePools(map[string]*ciliumipam.PodPool{"default": {
			Name: "default", Ranges: prefixesOf("10.245.0.0/16", "10.244.0.0/16"), Bits: 24,
			Note: &ciliumipam.PoolNote{Ranges: prefixesOf("10.244.0.0/16")},
		}})
	}
	survey, err := New(shared, Sources{Cilium: state})
	must(w.T, err)
	tools := migration.Deps{Cluster: w.c, Image: pull.Image{Name: "replumb"}}
	p := &podmove.Planner{Base: migration.Base{Tools: tools, Migration: &v1alpha1.Migration{}}, Inventory: &survey.Inventory}
	return &Planner{Planner: p, nodes: survey, agentWait: 5 * time.Second}
}

// move runs the way of the node, without what is written of it in the Migration.
func (w *troubled) move(hold bool, sink func(engine.Event)) error {
	w.Helper()
	groups := w.planner(hold).moveNodes(forward)
	groups = groups[:len(groups)-1]
	r := &engine.Runner{Deadline: w.deadline, Sink: sink}
	return r.Run(w.Context(), &engine.Plan{Name: "apply", Phases: []engine.Phase{{Name: "nodes", Title: "Move", Groups: groups}}})
}

// requireAsBefore fails the test unless the node is as it was before it was begun.
func (w *troubled) requireAsBefore() {
	w.Helper()
	w.eventually(func() error {
		n, err := ciliumipam.Get(w.Context(), w.c, "a", w.node.pool)
		if err != nil || n == nil {
			return fmt.Errorf("there is no ciliumnode: %w", err)
		}
		if !slices.Equal(n.PodCIDRs, []string{formerRange}) || n.Ignored || !n.Lives(netip.MustParsePrefix(formerRange)) {
			return fmt.Errorf("the CiliumNode has %v, %v, ignored: %v", n.PodCIDRs, n.Internal, n.Ignored)
		}
		if len(n.Held) > 0 {
			return fmt.Errorf("the CiliumNode holds %v", n.Held)
		}
		if w.node.pool == "" && !w.away.Load() && !strings.Contains(n.Problem, "not configured") {
			return fmt.Errorf("the operator says %q", n.Problem)
		}
		return nil
	})
	found := &corev1.Node{}
	must(w.T, w.c.Get(w.Context(), client.ObjectKey{Name: "a"}, found))
	if len(found.Annotations) > 0 || found.Spec.Unschedulable || cordon.Closed(found) {
		w.Errorf("the Node has %v and %v", found.Annotations, found.Spec)
	}
	pods := &corev1.PodList{}
	must(w.T, w.c.List(w.Context(), pods, client.InNamespace(v1alpha1.SystemNamespace)))
	if len(pods.Items) > 0 {
		w.Errorf("pod %s is left", pods.Items[0].Name)
	}
}

func requireReturned(t *testing.T, err error, says string) {
	t.Helper()
	var returned *ReturnedError
	if !errors.As(err, &returned) || returned.Node != "a" || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), formerRange) ||
		!strings.Contains(returned.Advice(), "replumb rollback m") {
		t.Errorf("it ends with %v, want %q", err, says)
	}
}

// TestCiliumNodeReturns: a node on which apply cannot go on has its former range again when the run
// ends, and can be tried again.
func TestCiliumNodeReturns(t *testing.T) {
	for name, tt := range map[string]struct {
		hold bool
		pool string
		// deadline is that of the step in which the trouble comes, unless it has its own.
		deadline time.Duration
		// trouble comes when the step begins, and goes when the node turns back.
		at      string
		trouble func(w *troubled)
		gone    func(w *troubled)
		says    string
		// kept says that the agent is not restarted.
		kept bool
	}{
		"the agent does not come back, over tunnels": {
			hold: true, at: "agent/a", says: "node a", trouble: func(w *troubled) { w.sick.Store(true) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the agent does not come back, with native routing": {
			at: "agent/a", says: "node a", trouble: func(w *troubled) { w.sick.Store(true) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the agent does not come back, in a pool": {
			hold: true, pool: "default", at: "agent/a", says: "node a", trouble: func(w *troubled) { w.sick.Store(true) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the agent of a pool has the next range, and does not come up": {
			hold: true, pool: "default", at: "agent/a", says: "not ready", trouble: func(w *troubled) { w.sick.Store(true); w.mute.Store(false) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the same with native routing": {
			pool: "default", at: "agent/a", says: "not ready", trouble: func(w *troubled) { w.sick.Store(true); w.mute.Store(false) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the agent has the next range, and does not come up": {
			hold: true, at: "agent/a", says: "not ready", trouble: func(w *troubled) { w.sick.Store(true); w.mute.Store(false) },
			gone: func(w *troubled) { w.sick.Store(false) },
		},
		"the operator is away": {
			hold: true, at: "switch/a", says: "has not reserved", kept: true, deadline: 5 * time.Second,
			trouble: func(w *troubled) {
				w.away.Store(true)
				_ = w.c.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("kube-system"),
					client.MatchingLabels{"io.cilium/app": "operator"}, client.GracePeriodSeconds(0))
			},
			gone: func(*troubled) {},
		},
		"the CiliumNode is deleted while the agent does not come back": {
			hold: true, at: "agent/a", says: "node a",
			trouble: func(w *troubled) {
				w.sick.Store(true)
				gone := &unstructured.Unstructured{}
				gone.SetGroupVersionKind(ciliumipam.GroupVersionKind())
				gone.SetName("a")
				_ = w.c.Delete(context.Background(), gone)
			},
			gone: func(w *troubled) { w.sick.Store(false) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTroubled(t, tt.pool)
			w.deadline = cmp.Or(tt.deadline, w.deadline)
			began := false
			err := w.move(tt.hold, func(e engine.Event) {
				switch {
				case e.Kind == engine.StepStarted && e.Step == tt.at && !began:
					began = true
					tt.trouble(w)
				case e.Kind == engine.StepStarted && e.Step == "return/a":
					tt.gone(w)
				}
			})
			requireReturned(t, err, tt.says)
			w.requireAsBefore()
			err = w.c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "cilium-first"}, &corev1.Pod{})
			if (err == nil) != tt.kept {
				t.Errorf("the agent that was there before: %v", err)
			}
			w.away.Store(false)
			must(t, w.move(tt.hold, nil))
			n, err := ciliumipam.Get(t.Context(), w.c, "a", tt.pool)
			must(t, err)
			if !slices.Equal(n.PodCIDRs, []string{nextRange}) || n.Ignored || n.Problem != "" {
				t.Errorf("then the CiliumNode has %v, and the operator says %q", n.PodCIDRs, n.Problem)
			}
		})
	}
}
