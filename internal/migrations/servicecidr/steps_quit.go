package servicecidr

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// stays says why a Service may not hop, as it was just read; nothing, if it may, or must since it is in the middle of a hop.
func (h *hopStep) stays(svc *corev1.Service) string {
	if crossing(svc, h.transit.domain) {
		return ""
	}
	_, reason := h.transit.strategies.judge(svc)
	return reason.Text
}

// quit lets a Service go that may not hop: it stays where it is, and what the migration has of it goes. One that has moved keeps its bridge,
// and its old address so goes on answering until finish or rollback; one that others took to a third address is for the next look at the
// cluster.
func (h *hopStep) quit(ctx context.Context, svc *corev1.Service) error {
	if addressless(svc).Kind == "" && !isAt(svc, h.entry.Old) {
		return nil
	}
	r := release{
		client: h.transit.client, migration: h.transit.migration, entry: h.entry, domain: h.transit.domain,
		strategies: h.transit.strategies,
	}
	if err := r.write(ctx, leftover{service: svc}); err != nil {
		return err
	}
	return r.prove(ctx)
}
