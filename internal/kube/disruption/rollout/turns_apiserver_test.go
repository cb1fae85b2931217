//go:build apiserver && long

package rollout

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// counted plays the controller of a ReplicaSet: so many of its pods are ready.
func (f *fixture) counted(rs *appsv1.ReplicaSet, ready int32) {
	f.Helper()
	rs.Status = appsv1.ReplicaSetStatus{Replicas: ready, ReadyReplicas: ready, AvailableReplicas: ready}
	f.must(f.Status().Update(f.Context(), rs))
}

// leaving waits until a pod of these is told to end.
func (f *fixture) leaving(pods ...*corev1.Pod) (gone *corev1.Pod) {
	f.Helper()
	f.must(wait.PollUntilContextTimeout(f.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		for _, p := range pods {
			now := &corev1.Pod{}
			if err := f.Get(ctx, client.ObjectKeyFromObject(p), now); err != nil || now.DeletionTimestamp != nil {
				gone = p
				return err == nil, err
			}
		}
		return false, nil
	}))
	return gone
}

// TestDrainsTakeTurns empties two nodes at once that have pods of one owner.
func TestDrainsTakeTurns(t *testing.T) {
	f := setup(t)
	rs := f.replicaSet("trio")
	f.scaled(rs, 3)
	owner := controlledBy(kindReplicaSet, rs)
	labelled := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }
	first, second := f.on("turn-a", "trio-a", labelled, owner), f.on("turn-b", "trio-b", labelled, owner)
	f.on("turn-c", "trio-c", labelled, owner)
	f.counted(rs, 3)
	budget := f.budget(1)
	turns := NewTurns(limited.Client.(client.WithWatch))
	ended := map[string]<-chan error{}
	for _, node := range []string{"turn-a", "turn-b"} {
		ended[node] = f.start(
			t.Context(),
			f.tools.Drain(Leaving{Node: node, Taint: closing(), Bare: v1alpha1.BarePodsReport, Turns: turns}),
		)
	}
	gone := f.leaving(first, second)
	other := second
	if gone.Name == second.Name {
		other = first
	}
	f.waiting("trio has 2 of 3 pods ready")
	f.remove(gone)
	f.counted(rs, 2)
	f.on("turn-d", "trio-d", labelled, owner)
	f.waiting("PodDisruptionBudget guard lets none go")
	f.counted(rs, 3)
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	if other.DeletionTimestamp != nil {
		t.Error("the second pod was sent away before the budget let it go")
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
	f.allow(budget, 1)
	f.remove(f.leaving(other))
	for _, e := range ended {
		f.must(<-e)
	}
}
