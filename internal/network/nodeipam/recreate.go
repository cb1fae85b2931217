package nodeipam

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const gonePoll = 10 * time.Millisecond

// Recreate gives a Node other ranges by recreating it: spec.podCIDRs cannot change once set
// (ValidateNodeUpdate in k8s.io/kubernetes pkg/apis/core/validation/validation.go).
//
// The new Node has the labels, annotations, taints, spec and status of the old one from the start:
// a created Node keeps its status (pkg/registry/core/node/strategy.go), so it is never seen not
// ready. It is gone for milliseconds, which harms no one:
//
//   - kubelet registers its Node at its start only (registerWithAPIServer in
//     pkg/kubelet/kubelet_node_status.go); reports that fail meanwhile are repeated.
//   - The pod garbage collector waits 40 s (pkg/controller/podgc).
//   - The garbage collector would at once delete the Lease, the CSINode, which kubelet writes at its
//     start only, and mirror pods. So the deletion orphans them, and the known ones get the new owner.
//
// It can be repeated after any failure: what it needs is in the cluster from before the deletion.
func (k SavedNodes) Recreate(ctx context.Context, name string, podCIDRs []string) error {
	node := &corev1.Node{}
	err := k.Client.Get(ctx, client.ObjectKey{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return k.restore(ctx, name, podCIDRs)
	case err != nil:
		return fmt.Errorf("node %s: %w", name, err)
	case !node.DeletionTimestamp.IsZero():
		return engine.NotYet("node %s is being deleted", name)
	case slices.Equal(PodCIDRs(node), podCIDRs):
		return k.finish(ctx, node)
	case len(PodCIDRs(node)) == 0:
		return k.complete(ctx, node, podCIDRs)
	}
	if len(node.Finalizers) > 0 {
		return fmt.Errorf("node %s has finalizers %v: its deletion would do more than delete it", name, node.Finalizers)
	}
	if err := k.Save(ctx, node, podCIDRs); err != nil {
		return err
	}
	// The version that is kept is the one that is deleted, or none.
	err = k.Client.Delete(ctx, node, client.PropagationPolicy(metav1.DeletePropagationOrphan), client.Preconditions{
		UID: &node.UID, ResourceVersion: &node.ResourceVersion,
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %s: %w", name, err)
	}
	if err := k.awaitGone(ctx, node); err != nil {
		return err
	}
	return k.restore(ctx, name, podCIDRs)
}

// awaitGone returns when the deleted Node is gone or replaced.
func (k SavedNodes) awaitGone(ctx context.Context, old *corev1.Node) error {
	last := engine.NotYet("node %s is being deleted", old.Name)
	err := wait.PollUntilContextCancel(ctx, gonePoll, true, func(ctx context.Context) (bool, error) {
		now := &metav1.PartialObjectMetadata{}
		now.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		err := k.Client.Get(ctx, client.ObjectKey{Name: old.Name}, now)
		if err != nil && !apierrors.IsNotFound(err) && !engine.Retryable(err) {
			return false, fmt.Errorf("node %s: %w", old.Name, err)
		}
		return apierrors.IsNotFound(err) || err == nil && now.UID != old.UID, nil
	})
	if wait.Interrupted(err) {
		return last
	}
	return err
}

func (k SavedNodes) restore(ctx context.Context, name string, podCIDRs []string) error {
	kept, err := k.Get(ctx, name)
	if err != nil {
		return err
	}
	if kept == nil {
		return nil // someone has removed the node, which has nothing to do with us
	}
	node := recreated(kept.Node, podCIDRs)
	err = k.Client.Create(ctx, node, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("node %s was registered by its kubelet meanwhile", name)
	}
	if err != nil {
		return fmt.Errorf("recreating node %s: %w", name, err)
	}
	return k.finish(ctx, node)
}

// recreated is the Node to create: the old one with other ranges, and a note of its original ranges
// unless it gets those back.
func recreated(old *corev1.Node, podCIDRs []string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: old.Name, Labels: old.Labels, Annotations: map[string]string{}, OwnerReferences: old.OwnerReferences,
		},
		Spec: *old.Spec.DeepCopy(), Status: *old.Status.DeepCopy(),
	}
	for key, value := range old.Annotations {
		node.Annotations[key] = value
	}
	node.Spec.PodCIDRs = slices.Clone(podCIDRs)
	node.Spec.PodCIDR = podCIDRs[0]
	had := strings.Join(PodCIDRs(old), ",")
	switch before := node.Annotations[v1alpha1.AnnotationPodCIDRs]; {
	case before == strings.Join(podCIDRs, ","):
		delete(node.Annotations, v1alpha1.AnnotationPodCIDRs)
	case before == "" && had != "" && !slices.Equal(PodCIDRs(old), podCIDRs):
		node.Annotations[v1alpha1.AnnotationPodCIDRs] = had
	}
	return node
}

// complete gives ranges to a Node without any: it has joined while none are handed out, or its
// kubelet started while it was gone and needs the rest back too.
func (k SavedNodes) complete(ctx context.Context, node *corev1.Node, podCIDRs []string) error {
	kept, err := k.Get(ctx, node.Name)
	if err != nil {
		return err
	}
	was := node.DeepCopy()
	if kept != nil {
		want := recreated(kept.Node, podCIDRs)
		node.Labels, node.Annotations = over(node.Labels, want.Labels), over(node.Annotations, want.Annotations)
		node.Spec = want.Spec
	}
	node.Spec.PodCIDRs, node.Spec.PodCIDR = podCIDRs, podCIDRs[0]
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := k.Client.Patch(ctx, node, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("giving node %s the range %s: %w", node.Name, strings.Join(podCIDRs, ","), err)
	}
	return k.finish(ctx, node)
}

func over(base, with map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range []map[string]string{base, with} {
		for key, value := range m {
			out[key] = value
		}
	}
	return out
}

// finish restores the ownership of a Node's objects and forgets what was saved.
func (k SavedNodes) finish(ctx context.Context, node *corev1.Node) error {
	kept, err := k.Get(ctx, node.Name)
	if err != nil || kept == nil {
		return err
	}
	if err := k.adopt(ctx, node); err != nil {
		return err
	}
	return k.Forget(ctx, node.Name)
}

// Recreated reports whether a Node has the ranges, and nothing is left to be done for it.
func (k SavedNodes) Recreated(ctx context.Context, name string, podCIDRs []string) (bool, error) {
	kept, err := k.Get(ctx, name)
	if err != nil || kept != nil {
		return false, err
	}
	node := &corev1.Node{}
	err = k.Client.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return true, nil // removed by someone
	}
	return err == nil && node.DeletionTimestamp.IsZero() && slices.Equal(PodCIDRs(node), podCIDRs), err
}

// adopt makes a Node the owner of its Lease, CSINode and mirror pods, as kubelet does.
func (k SavedNodes) adopt(ctx context.Context, node *corev1.Node) error {
	owned, err := k.owned(ctx, node.Name)
	if err != nil {
		return err
	}
	for _, o := range owned {
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
		if _, pod := o.(*corev1.Pod); pod {
			ref.Controller = ptr.To(true) // getNodeUID's caller in pkg/kubelet/pod/mirror_client.go
		}
		refs := slices.DeleteFunc(slices.Clone(o.GetOwnerReferences()), func(r metav1.OwnerReference) bool {
			return r.Kind == "Node" && r.Name == node.Name
		})
		if len(refs) < len(o.GetOwnerReferences()) && slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
			return r.UID == node.UID
		}) {
			continue
		}
		was := o.DeepCopyObject().(client.Object)
		o.SetOwnerReferences(append(refs, ref))
		patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
		err := k.Client.Patch(ctx, o, patch, client.FieldOwner(v1alpha1.FieldManager))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("making node %s the owner of %T %s: %w", node.Name, o, o.GetName(), err)
		}
	}
	return nil
}
