package servicecidr

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// reasonToStay says why a Service may not hop, as it was just read; nothing, if it may, or must since it is in the middle of a hop.
func (h *hopStep) reasonToStay(svc *corev1.Service) string {
	if IsInTransit(svc, h.steps.domain) {
		return ""
	}
	_, reason := h.steps.strategies.Evaluate(svc)
	return reason.Text
}

// skip lets a Service go that may not hop: it stays where it is, and what the migration has of it goes. One that has moved keeps its bridge,
// and its old address so goes on answering until finish or rollback; one that others took to a third address is for the next look at the
// cluster.
func (h *hopStep) skip(ctx context.Context, svc *corev1.Service) error {
	if addressless(svc).Kind == "" && !IsAt(svc, h.entry.Old) {
		return nil
	}
	r := release{
		client: h.steps.client, migration: h.steps.migration, entry: h.entry, domain: h.steps.domain,
		strategies: h.steps.strategies,
	}
	if err := r.write(ctx, remainder{service: svc}); err != nil {
		return err
	}
	return r.prove(ctx)
}
