package servicecidr

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/spec"
)

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec, or names all that is wrong (spec.Refuse).
func Validate(m *v1alpha1.Migration) (services.Spec, error) {
	if err := spec.Refuse(spec.Validate(m, phaseNames())); err != nil {
		return services.Spec{}, err
	}
	j := m.Spec.ServiceCIDR
	if j == nil {
		return services.Spec{}, &SpecError{Field: "spec", Problem: "names another job", Hint: "set spec.serviceCIDR.to"}
	}
	return services.Spec{
		Name: m.Name, Mode: j.Mode, To: spec.Prefixes(j.To), From: spec.Prefixes(j.From), Networks: spec.Prefixes(j.Networks),
		Overlap: j.Overlap, Bridge: j.Bridge, BridgeLabels: j.BridgeLabels, Domain: j.ClusterDomain, Drain: j.Drain.Duration, Barrier: j.Barrier.Mode, BarrierWait: j.Barrier.Wait.Duration,
		Batch: m.Spec.Batch.Size, Settle: m.Spec.Batch.Settle.Duration, ClusterServices: j.ClusterServices, Refresh: j.Refresh,
		Follower:   j.Follower,
		Strategies: services.StrategiesOf(j), Store: j.Etcd,
		APIServers: j.APIServers, GateWait: j.GateWait.Duration, Actions: j.Actions, Gates: j.Gates, Manual: j.ManualGates, Common: *m.Spec.DeepCopy(),
	}, nil
}

// SpecError says which field of a Migration is wrong, and what to do.
type SpecError = spec.Error

// recordRanges fills in resolved ranges, also of a Migration created by other means than a run.
func recordRanges(s *v1alpha1.ServiceCIDRSpec, resolved services.Spec, recorded *v1alpha1.Migration) {
	if recorded == nil || len(s.From) == 0 {
		s.From = lists.Strings(resolved.From)
	}
	if recorded == nil || len(s.To) == 0 {
		s.To = lists.Strings(resolved.To)
	}
}
