//go:build apiserver && long

package nodeipam

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var server = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { server.Main(m) }

const nodeName = "worker"

// aNode is a node with everything, that owns its Lease and its CSINode.
func aNode(t *testing.T) (SavedNodes, *corev1.Node) {
	t.Helper()
	s := server.Get(t)
	s.Clean(t)
	s.Namespace(t, v1alpha1.SystemNamespace)
	s.Namespace(t, corev1.NamespaceNodeLease)
	garbageCollector(t, s)
	t.Cleanup(func() {
		for _, o := range []client.Object{
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: nodeName}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "node-" + nodeName}},
		} {
			_ = s.Delete(context.Background(), o)
		}
	})
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName, Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"note": "keep me"},
		},
		Spec: corev1.NodeSpec{
			PodCIDR: "10.244.3.0/24", PodCIDRs: []string{"10.244.3.0/24"}, ProviderID: "cloud://17", Unschedulable: true,
			Taints: []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.11"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
		},
	}
	create(t, s, node)
	owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID}}
	create(t, s, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: corev1.NamespaceNodeLease, Name: nodeName, OwnerReferences: owner,
	}})
	create(t, s, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName, OwnerReferences: owner}})
	return SavedNodes{Client: s, Migration: "pods"}, node
}

func create(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// garbageCollector stands in for the part of the real one that a deletion with propagationPolicy
// Orphan waits for (k8s.io/kubernetes pkg/controller/garbagecollector): it takes the owner out of
// what it owns, then the finalizer.
func garbageCollector(t *testing.T, c client.Client) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-done
	})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			node := &corev1.Node{}
			if c.Get(ctx, client.ObjectKey{Name: nodeName}, node) != nil ||
				!slices.Contains(node.Finalizers, metav1.FinalizerOrphanDependents) {
				continue
			}
			owned, err := (SavedNodes{Client: c}).owned(ctx, nodeName)
			if err != nil {
				continue
			}
			for _, o := range owned {
				o.SetOwnerReferences(nil)
				_ = c.Update(ctx, o)
			}
			node.Finalizers = nil
			_ = c.Update(ctx, node)
		}
	}()
}

func get(t *testing.T, c client.Client) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: nodeName}, n); err != nil {
		t.Fatal(err)
	}
	return n
}

// requireSame holds everything of two Nodes together but what the API server gives out, and ranges.
func requireSame(t *testing.T, was, is *corev1.Node) {
	t.Helper()
	if was.UID == is.UID {
		t.Error("it is the same Node")
	}
	a, b := was.DeepCopy(), is.DeepCopy()
	for _, n := range []*corev1.Node{a, b} {
		n.ObjectMeta = metav1.ObjectMeta{Labels: n.Labels, Annotations: n.Annotations}
		delete(n.Annotations, v1alpha1.AnnotationPodCIDRs)
		n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the Node was\n%+v\nand is\n%+v", a, b)
	}
}

func requireOwns(t *testing.T, k SavedNodes, node *corev1.Node) {
	t.Helper()
	owned, err := k.owned(t.Context(), nodeName)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range owned {
		refs := o.GetOwnerReferences()
		if len(refs) != 1 || refs[0].UID != node.UID {
			t.Errorf("%T is owned by %v, not by %s", o, refs, node.UID)
		}
	}
	if len(owned) != 2 {
		t.Errorf("%d objects are left of 2", len(owned))
	}
	kept, err := k.Get(t.Context(), nodeName)
	if err != nil || kept != nil {
		t.Errorf("the Node is still kept: %v, %v", kept, err)
	}
}

func TestRecreateThereAndBack(t *testing.T) {
	k, was := aNode(t)
	there := []string{"10.245.3.0/24"}
	if err := k.Recreate(t.Context(), nodeName, there); err != nil {
		t.Fatal(err)
	}
	is := get(t, k.Client)
	requireSame(t, was, is)
	requireOwns(t, k, is)
	if is.Spec.PodCIDR != there[0] || is.Annotations[v1alpha1.AnnotationPodCIDRs] != "10.244.3.0/24" {
		t.Errorf("podCIDR %s, annotations %v", is.Spec.PodCIDR, is.Annotations)
	}
	if err := k.Recreate(t.Context(), nodeName, there); err != nil || get(t, k.Client).UID != is.UID {
		t.Errorf("a second time creates it again: %v", err)
	}
	if err := k.Recreate(t.Context(), nodeName, was.Spec.PodCIDRs); err != nil {
		t.Fatal(err)
	}
	back := get(t, k.Client)
	requireSame(t, is, back)
	requireOwns(t, k, back)
	if _, left := back.Annotations[v1alpha1.AnnotationPodCIDRs]; left || back.Spec.PodCIDR != "10.244.3.0/24" {
		t.Errorf("podCIDR %s, annotations %v", back.Spec.PodCIDR, back.Annotations)
	}
}

// TestRecreateTakesUpWhereItWasKilled does by hand what a run does before it is killed, and lets
// another one go on.
func TestRecreateTakesUpWhereItWasKilled(t *testing.T) {
	there := []string{"10.245.3.0/24"}
	gone := func(t *testing.T, k SavedNodes, node *corev1.Node) {
		t.Helper()
		if err := k.Save(t.Context(), node, there); err != nil {
			t.Fatal(err)
		}
		if err := k.Client.Delete(t.Context(), node, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			t.Fatal(err)
		}
		if err := k.awaitGone(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	for name, killed := range map[string]func(*testing.T, SavedNodes, *corev1.Node){
		"kept": func(t *testing.T, k SavedNodes, node *corev1.Node) {
			if err := k.Save(t.Context(), node, there); err != nil {
				t.Fatal(err)
			}
		},
		"gone": gone,
		"recreated": func(t *testing.T, k SavedNodes, node *corev1.Node) {
			gone(t, k, node)
			create(t, k.Client, recreated(node, there))
		},
		"registered by its kubelet meanwhile": func(t *testing.T, k SavedNodes, node *corev1.Node) {
			gone(t, k, node)
			create(t, k.Client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: node.Status})
		},
	} {
		t.Run(name, func(t *testing.T) {
			k, was := aNode(t)
			killed(t, k, was)
			if done, err := k.Recreated(t.Context(), nodeName, there); err != nil || done {
				t.Fatalf("taken for recreated: %v, %v", done, err)
			}
			if err := k.Recreate(t.Context(), nodeName, there); err != nil {
				t.Fatal(err)
			}
			is := get(t, k.Client)
			requireSame(t, was, is)
			requireOwns(t, k, is)
			if done, err := k.Recreated(t.Context(), nodeName, there); err != nil || !done {
				t.Errorf("not recreated: %v", err)
			}
		})
	}
}

func TestRecreateLeavesWhatIsNotItsOwn(t *testing.T) {
	k, was := aNode(t)
	was.Finalizers = []string{"example.com/terminate-the-machine"}
	if err := k.Client.Update(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	err := k.Recreate(t.Context(), nodeName, []string{"10.245.3.0/24"})
	if err == nil || get(t, k.Client).UID != was.UID || !get(t, k.Client).DeletionTimestamp.IsZero() {
		t.Errorf("a node with finalizers was deleted: %v", err)
	}
	now := get(t, k.Client)
	now.Finalizers = nil
	if err := errors.Join(k.Client.Update(t.Context(), now), k.Client.Delete(t.Context(), now)); err != nil {
		t.Fatal(err)
	}
	if err := k.Recreate(t.Context(), nodeName, []string{"10.245.3.0/24"}); err != nil {
		t.Errorf("a node that was removed: %v", err)
	}
	if err := k.Client.Get(t.Context(), client.ObjectKey{Name: nodeName}, now); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("it came back: %v", err)
	}
}
