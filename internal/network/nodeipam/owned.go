package nodeipam

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// owned are the objects of a node that kubelet gives it as their owner.
func (k SavedNodes) owned(ctx context.Context, node string) ([]client.Object, error) {
	var all []client.Object
	lease, csi := &coordinationv1.Lease{}, &storagev1.CSINode{}
	for key, o := range map[client.ObjectKey]client.Object{
		{Namespace: corev1.NamespaceNodeLease, Name: node}: lease, {Name: node}: csi,
	} {
		err := k.Client.Get(ctx, key, o)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("%T %s: %w", o, key, err)
		}
		if err == nil {
			all = append(all, o)
		}
	}
	pods := &corev1.PodList{}
	if err := k.Client.List(ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror && p.DeletionTimestamp.IsZero() {
			all = append(all, p)
		}
	}
	return all, nil
}
