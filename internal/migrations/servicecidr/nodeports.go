package servicecidr

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/network/bridge"
)

// delayKubeProxies has the next sync of every kube-proxy come after the patches of a Service with node ports. done removes what it takes.
func (h *hopStep) delayKubeProxies(ctx context.Context, svc *corev1.Service) (done func(context.Context) error, err error) {
	if err := h.checkQuota(ctx, svc); err != nil {
		return nil, err
	}
	if h.routed() {
		if err := h.steps.throttle.Rest(ctx); err != nil {
			return nil, err
		}
	}
	return bridge.Nudge(ctx, h.steps.client, h.steps.pool, h.steps.migration)
}
