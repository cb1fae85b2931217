package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// Unfinished has interrupted hops end first, since API servers find a webhook without an address
// only by the old one. A rollback takes such Services back at once: another hop may be refused by
// now.
func (j *Job) Unfinished(ctx context.Context, to v1alpha1.DesiredState) (*engine.Plan, error) {
	away := &corev1.ServiceList{}
	// The field is selectable (ServiceSelectableFields in k8s.io/kubernetes
	// pkg/registry/core/service/strategy.go).
	if err := j.Deps.Cluster.List(ctx, away, client.MatchingFields{"spec.type": string(corev1.ServiceTypeExternalName)}); err != nil {
		return nil, fmt.Errorf("looking for Services in the middle of a hop: %w", err)
	}
	if !slices.ContainsFunc(away.Items, func(svc corev1.Service) bool { return services.LeadsToBridge(&svc, j.Spec.Domain) }) {
		return nil, nil
	}
	snap, err := inventory.Load(ctx, j.Deps.Cluster)
	if err != nil {
		return nil, err
	}
	found, _, err := j.inventory(ctx, snap)
	if err != nil {
		return nil, err
	}
	p, err := j.planner(ctx, checks.Input{Snapshot: snap, Inventory: found, Live: inventory.Live{Access: j.Access}})
	if err != nil {
		return nil, err
	}
	return p.complete(to == v1alpha1.DesiredRolledBack && migration.Reversible(p.Migration, words().Return) == nil && !found.Bitmap), nil
}

// complete takes Services in transit to where they were going, or back; nil without any.
func (p *Planner) complete(back bool) *engine.Plan {
	var hops []engine.Step
	for _, e := range p.Inventory.All() {
		if e.Position == services.InTransit {
			to := e.Heading()
			switch {
			case back || p.Inventory.Bitmap && ranges.GivesOutAllOf(p.Inventory, []netip.Prefix{netip.PrefixFrom(e.Old, e.Old.BitLen())}):
				to = engine.Backward
			case p.Inventory.Bitmap: // API servers that have a flag give no other address
				to = engine.Forward
			}
			hops = append(hops, p.steps(to).Hop(e, to))
		}
	}
	if len(hops) == 0 {
		return nil
	}
	return &engine.Plan{Name: p.spec().Name, Phases: []engine.Phase{{
		Name: "complete", Title: "Complete the hops that a run was cut off in", Groups: engine.AtOnce(parallel, "", hops...),
	}}}
}
