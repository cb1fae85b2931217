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
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
)

var _ migration.Completer = (*Job)(nil)

// Unfinished implements migration.Completer: Services that a run left between the two patches of their hop arrive before anything else is
// done, checked or waited for. Without an address they are reached through their bridges alone, and API servers find those of webhooks only while it
// says which was the old one: of a webhook that they do not find, nothing that it is asked about can be written. A rollback takes them back at once: to complete the hop would cost them another, which
// may be refused by now.
func (j *Job) Unfinished(ctx context.Context, to v1alpha1.DesiredState) (*engine.Plan, error) {
	away := &corev1.ServiceList{}
	// The field is selectable (ServiceSelectableFields in k8s.io/kubernetes pkg/registry/core/service/strategy.go).
	if err := j.Tools.Cluster.List(ctx, away, client.MatchingFields{"spec.type": string(corev1.ServiceTypeExternalName)}); err != nil {
		return nil, fmt.Errorf("looking for Services in the middle of a hop: %w", err)
	}
	if !slices.ContainsFunc(away.Items, func(svc corev1.Service) bool { return crossing(&svc, j.Spec.Domain) }) {
		return nil, nil
	}
	snap, err := cluster.Load(ctx, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	survey, _, err := j.survey(ctx, snap)
	if err != nil {
		return nil, err
	}
	p, err := j.planner(ctx, Input{Snapshot: snap, Survey: survey, Live: cluster.Live{Access: j.Access}})
	if err != nil {
		return nil, err
	}
	return p.complete(to == v1alpha1.DesiredRolledBack && migration.Reversible(p.Migration) == nil && !survey.Bitmap), nil
}

// complete takes half-hopped Services to where they were going, or back; nil, if there are none.
func (p *Planner) complete(back bool) *engine.Plan {
	var hops []engine.Step
	for _, e := range p.Survey.everything() {
		if e.Place == HalfHopped {
			to := e.heading()
			switch {
			case back || p.Survey.Bitmap && p.Survey.gives([]netip.Prefix{netip.PrefixFrom(e.Old, e.Old.BitLen())}):
				to = engine.Backward
			case p.Survey.Bitmap: // API servers that have a flag give no other address
				to = engine.Forward
			}
			hops = append(hops, p.transit(to).hop(e, to))
		}
	}
	if len(hops) == 0 {
		return nil
	}
	return &engine.Plan{Name: p.spec().Name, Phases: []engine.Phase{{
		Name: "complete", Title: "Complete the hops that a run was cut off in", Groups: engine.AtOnce(parallel, "", hops...),
	}}}
}

// heading is where a Service was going when its hop was cut off. It goes by the addresses that are reserved: that which it leaves is reserved
// after the other. What remains open its annotations say, which others can write: both addresses are the Service's own, and a lie costs it a
// hop more.
func (e *Entry) heading() engine.Direction {
	old, isOld := e.reserved[e.Old]
	target, isTarget := e.reserved[e.New]
	if isOld && isTarget && !old.since.Equal(target.since) {
		if old.since.After(target.since) {
			return engine.Forward
		}
		return engine.Backward
	}
	if e.Service.Annotations[v1alpha1.AnnotationAwaySince] != "" {
		return engine.Backward
	}
	return engine.Forward
}
