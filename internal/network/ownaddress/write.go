package ownaddress

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Write patches a Service, as it was read, to the wanted one: spec and annotations, and then the
// addresses of its load balancer. Both patches carry the resourceVersion. The answer is in svc.
func Write(ctx context.Context, c client.Client, svc, want *corev1.Service) error {
	owner := client.FieldOwner(v1alpha1.FieldManager)
	since := func() client.Patch {
		return client.MergeFromWithOptions(svc.DeepCopy(), client.MergeFromWithOptimisticLock{})
	}
	status := want.Status.LoadBalancer.DeepCopy()
	if !equality.Semantic.DeepEqual(svc.Spec, want.Spec) || !maps.Equal(svc.Annotations, want.Annotations) {
		next := want.DeepCopy()
		next.ResourceVersion, next.Status = svc.ResourceVersion, *svc.Status.DeepCopy()
		if err := c.Patch(ctx, next, since(), owner); err != nil {
			return fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err)
		}
		*svc = *next
	}
	if equality.Semantic.DeepEqual(&svc.Status.LoadBalancer, status) {
		return nil
	}
	next := svc.DeepCopy()
	next.Status.LoadBalancer = *status
	if err := c.Status().Patch(ctx, next, since(), owner); err != nil {
		return fmt.Errorf("service %s/%s: its status: %w", svc.Namespace, svc.Name, err)
	}
	*svc = *next
	return nil
}
