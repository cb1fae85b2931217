//go:build apiserver

package noderanges

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/ciliumipam"
)

// allocated has the CiliumNode say what its agent has of the pool, and the agent's own address.
func (w *ciliumWorld) allocated(own string, cidrs ...string) {
	w.Helper()
	u := w.now().Object().DeepCopyObject().(*unstructured.Unstructured)
	u.Object["spec"] = map[string]any{
		"addresses": []any{map[string]any{"type": "CiliumInternalIP", "ip": own}},
		"ipam":      map[string]any{"pools": map[string]any{"allocated": []any{map[string]any{"pool": "default", "cidrs": anyOf(cidrs)}}}},
	}
	must(w.T, w.c.Update(w.Context(), u))
}

func anyOf(texts []string) (all []any) {
	for _, t := range texts {
		all = append(all, t)
	}
	return all
}

func (w *ciliumWorld) carries(want ...string) {
	w.Helper()
	n, err := ciliumipam.Get(w.Context(), w.c, "a", "default")
	must(w.T, err)
	if !slices.Equal(n.All(), want) {
		w.Errorf("the CiliumNode has %v, want %v", n.All(), want)
	}
}

// TestNodeOfAPoolOnItsWay: an agent writes what it has itself while it runs, and takes back what
// the next one is to take. That is written again once it has ended.
func TestNodeOfAPoolOnItsWay(t *testing.T) {
	w := newCiliumWorld(t)
	w.node.pool, w.node.holds, w.node.left = "default", true, prefixesOf("10.244.0.0/16")
	n, router := w.node, netip.MustParseAddr("10.245.255.253")
	w.allocated(formerOwn, formerRange)

	must(t, w.write(n.give()))
	w.waits(n.give(), "has not reserved")
	w.complain("")
	w.proven(n.give())
	must(t, w.write(n.ignore()))
	w.copyAnnotations()
	must(t, w.write(n.lead()))
	w.proven(n.lead())
	w.carries(nextRange, formerRange)

	restart := n.restartCilium()
	w.allocated(formerOwn, formerRange) // it has no need of the other one
	if err := w.write(restart); !engine.Retryable(err) {
		t.Errorf("its agent ends: %v", err)
	}
	w.eventually(func() error {
		err := w.c.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "cilium-first"}, &corev1.Pod{})
		if err == nil {
			return errors.New("the agent's pod is still there")
		}
		return client.IgnoreNotFound(err)
	})
	w.allocated(formerOwn, formerRange) // at the last moment
	if err := w.write(restart); !engine.Retryable(err) {
		t.Errorf("the next one is to start: %v", err)
	}
	w.carries(nextRange, formerRange)
	if got := w.now(); !slices.Equal(got.Internal, []netip.Addr{router}) {
		t.Errorf("the next agent is to take %v", got.Internal)
	}
	w.waits(restart, "has no agent of Cilium")
	w.agent("second")
	w.proven(restart)

	must(t, w.write(n.settle()))
	w.copyAnnotations()
	w.proven(n.settle())
	w.carries(nextRange)
	w.allocated(router.String(), "10.245.9.0/24", nextRange) // its pods need another one
	for _, s := range []engine.Step{n.give(), n.lead(), n.restartCilium(), n.settle()} {
		w.proven(s)
	}
}

// operatorPod starts a pod of the operator.
func (w *ciliumWorld) operatorPod(name string) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"io.cilium/app": "operator"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, AutomountServiceAccountToken: ptr.To(false),
			TerminationGracePeriodSeconds: ptr.To[int64](0),
		},
	}
	must(w.T, w.c.Create(w.Context(), pod))
	return w.ready(pod)
}

// TestPoolChanges: a pool has both ranges while nodes move, its operator restarts once, and it has
// one range in the end.
func TestPoolChanges(t *testing.T) {
	w := newCiliumWorld(t)
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"ipv4": map[string]any{"cidrs": []any{"10.244.0.0/16"}, "maskSize": int64(24)},
	}}}
	u.SetGroupVersionKind(ciliumipam.PoolKind())
	u.SetName("default")
	must(t, w.c.Create(t.Context(), u))
	w.operatorPod("operator-1")
	pool := func() *ciliumipam.PodPool {
		have, err := ciliumipam.GetPool(t.Context(), w.c, "default")
		must(t, err)
		return have
	}
	inventory := &Inventory{Cilium: &CiliumState{Pool: pool()}}
	inventory.Spec.From, inventory.Spec.To = prefixesOf("10.244.0.0/16"), prefixesOf("10.245.0.0/16")
	p := podPool{tools: migration.Deps{Cluster: w.c}, nodes: inventory}
	has := func(want string) {
		t.Helper()
		if got := fmt.Sprint(pool().Ranges); got != want {
			t.Errorf("the pool has %s, want %s", got, want)
		}
	}

	must(t, w.write(p.offer(forward)))
	w.proven(p.offer(forward))
	has("[10.245.0.0/16 10.244.0.0/16]")
	w.waits(p.restartOperator(), "has not restarted")
	must(t, w.write(p.restartOperator()))
	w.waits(p.restartOperator(), "no pod that is ready")
	w.operatorPod("operator-2")
	w.proven(p.restartOperator())

	must(t, w.write(p.offer(backward)))
	has("[10.244.0.0/16 10.245.0.0/16]")
	w.waits(p.restartOperator(), "has not restarted")
	must(t, w.write(p.settle(backward)))
	w.proven(p.settle(backward))
	has("[10.244.0.0/16]")

	must(t, w.write(p.offer(forward)))
	must(t, w.write(p.settle(forward)))
	has("[10.245.0.0/16]")
	if pool().Note != nil {
		t.Errorf("it is noted %+v", pool().Note)
	}
	must(t, w.c.Delete(t.Context(), pool().Object()))
	w.proven(p.settle(forward))
	if err := p.offer(forward).Verify(t.Context()); err == nil || engine.Retryable(err) {
		t.Errorf("without the pool: %v", err)
	}
}
