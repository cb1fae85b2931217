package rights

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/watching"
)

const rangeMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: ranges}
spec:
  image: replumb
  podCIDR: {to: [10.245.0.0/16], roll: {barePods: Evict}}
  batch: {settle: 0s}
`

// TestNodeRanges: the roles are enough for whole migrations of pods whose Nodes carry the ranges, and all of them is needed. That all is
// needed of what every migration of pods takes, TestPods shows.
func TestNodeRanges(t *testing.T) {
	s := empty(t, shared)
	s.play(&fakekubelet.HostLocal{Client: s}, message)
	for i, name := range []string{"node1", "node2"} {
		s.node(name, fmt.Sprintf("192.0.2.%d", i+1))
		s.must(s.give(t.Context(), name, fmt.Sprintf("10.244.%d.0/24", i)))
	}
	s.manage()
	s.belongings("node1")
	s.start("pods", rangeMove)
	s.manifests(flannelAgent("kube-system")) // which reads the range of its node when it starts
	s.workloads("web")
	s.expect(3, viewer, []string{"check", "-f", s.file, "-o", "json"},
		"missing permission: get,create,patch,delete nodes (role replumb-pods-on-nodes-operate)")
	s.moves("ranges")
	s.movesForGood("ranges")
	s.audited(noderanges.Roles().Of(access.View, access.Operate), unusedByRanges()) // people pass the gates here
}

// unusedByRanges are the rights that no request takes here, with what would.
func unusedByRanges() map[string]string {
	return map[string]string{
		"update configmaps in replumb-system": "a run that was cut off while a Node was gone",
	}
}

// give gives a Node its range, as controller managers do, and the annotation by which they show that they have seen it.
func (s *scene) give(ctx context.Context, name, cidr string) error {
	body := `{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}`
	if cidr != "" {
		body = fmt.Sprintf(
			`{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"0"}},"spec":{"podCIDR":%q,"podCIDRs":[%[1]q]}}`,
			cidr,
		)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return s.Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, []byte(body)))
}

// manage plays controller managers until the test ends, and the administrator who changes how they run when a phase asks for it: in the
// phase repoint they give ranges to Nodes that have none, and in no other.
func (s *scene) manage() {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() {
		watching.Whenever(ctx, s, func(ctx context.Context) time.Duration {
			s.allocate(ctx)
			return time.Second
		}, &corev1.NodeList{})
	})
	s.Cleanup(func() { stop(); playing.Wait() })
}

// allocate looks at every Node once. What fails is made up for by the next look.
func (s *scene) allocate(ctx context.Context) {
	m, err := migration.Get(ctx, s, "ranges")
	nodes := &corev1.NodeList{}
	if err != nil || s.List(ctx, nodes) != nil {
		return
	}
	cidr := ""
	if m != nil && m.Status.Stage == "repoint" {
		cidr = "10.245.200.0/24"
		if m.Spec.Desired == v1alpha1.DesiredRolledBack {
			cidr = "10.244.200.0/24"
		}
	}
	for i := range nodes.Items {
		switch n := &nodes.Items[i]; {
		case !nodeipam.IsTrial(n):
			_ = s.admit(ctx, n)
		case n.Spec.PodCIDR == "":
			_ = s.give(ctx, n.Name, cidr)
		}
	}
}

// admit takes away the taint that the API server gives every Node that is made, as controller managers do once it is ready.
func (s *scene) admit(ctx context.Context, n *corev1.Node) error {
	was := n.DeepCopy()
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	if len(n.Spec.Taints) == len(was.Spec.Taints) {
		return nil
	}
	return s.Patch(ctx, n, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
}

// belongings gives a node what its kubelet makes it the owner of.
func (s *scene) belongings(node string) {
	s.Helper()
	n := &corev1.Node{}
	s.must(s.Get(s.Context(), client.ObjectKey{Name: node}, n))
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	controller := owner
	controller.Controller = ptr.To(true)
	for _, o := range []client.Object{
		&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node, OwnerReferences: []metav1.OwnerReference{owner}},
		},
		&storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: node, OwnerReferences: []metav1.OwnerReference{owner}},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceSystem, Name: "static-" + node, OwnerReferences: []metav1.OwnerReference{controller},
				Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "1"},
			},
			Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		},
	} {
		s.eventually(func() error { return s.Create(s.Context(), o) }) // the API server makes the namespace a while after its start
	}
}
