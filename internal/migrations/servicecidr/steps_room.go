package servicecidr

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/admission"
)

// room returns nil once the quotas of a Service's namespace have room for the node ports that patch B takes. Those that patch A gives up count
// until the quota's controller has counted again, which a hop must not wait for in its middle; the hop before this one may have just done so.
func (h *hopStep) room(ctx context.Context, svc *corev1.Service) error {
	quotas := &corev1.ResourceQuotaList{}
	err := h.transit.client.List(ctx, quotas, client.InNamespace(svc.Namespace))
	switch {
	case apierrors.IsForbidden(err): // a finding says that quotas are not known
		return nil
	case err != nil:
		return fmt.Errorf("quotas of service %s: %w", h.entry.Key(), err)
	}
	takes := charges{corev1.ResourceServicesNodePorts: int64(len(svc.Spec.Ports))}
	for _, lack := range lacking(quotas.Items, svc.Namespace, takes) {
		return engine.NotYet("the node ports of service %s: %w", h.entry.Key(), lack)
	}
	return nil
}

// roomYet turns the refusal of a quota that has not noticed yet what patch A gave up into one to try again.
func roomYet(err error) error {
	if refused := admission.Of(err); refused != nil && refused.Quota {
		return engine.NotYet("%w", err)
	}
	return err
}
