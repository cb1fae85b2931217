// Package servicecidr moves the Services of a live cluster to another Service range. plan.go lists the phases in order.
package servicecidr

import (
	"net/netip"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// Mode is what is done to the ranges.
	Mode v1alpha1.ServiceCIDRMode
	// To is the target range, From what is to be emptied. Resolve fills in what the Migration leaves open.
	To, From []netip.Prefix
	// Networks are ranges outside the cluster that the target must not overlap.
	Networks    []netip.Prefix
	Bridge      v1alpha1.BridgeForm
	Domain      string
	Drain       time.Duration
	Barrier     v1alpha1.BarrierMode
	BarrierWait time.Duration
	Batch       int
	Settle      time.Duration
	// ClusterServices says whether kube-dns and kubernetes move too.
	ClusterServices v1alpha1.ClusterServicesPolicy
	Refresh         v1alpha1.RefreshSpec
	// Follower says whether bridges are kept in step between commands.
	Follower v1alpha1.FollowerMode
	// APIServers are host:port of every API server; empty means the endpoints of kubernetes.
	APIServers []string
	GateWait   time.Duration
	// Strategies say how Services move, Store how the etcd is reached that API servers keep them in; nil, if it is not.
	Strategies strategies
	Store      *v1alpha1.StoreSpec
	// Actions do what gates wait for; nil if none does.
	Actions *v1alpha1.GateActions
	// Common is what all kinds of migrations have: tiers, windows, hooks, freeze, backups.
	Common v1alpha1.MigrationSpec
}

// SpecError says which field of a Migration is wrong, and what to do.
type SpecError = spec.Error

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with everything that is wrong in it: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, PhaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.ServiceCIDR
	if j == nil {
		return Spec{}, &SpecError{Field: "spec", Problem: "names another job", Hint: "set spec.serviceCIDR.to"}
	}
	return Spec{
		Name: m.Name, Mode: j.Mode, To: spec.Prefixes(j.To), From: spec.Prefixes(j.From), Networks: spec.Prefixes(j.Networks),
		Bridge: j.Bridge, Domain: j.ClusterDomain, Drain: j.Drain.Duration, Barrier: j.Barrier.Mode, BarrierWait: j.Barrier.Wait.Duration,
		Batch: m.Spec.Batch.Size, Settle: m.Spec.Batch.Settle.Duration, ClusterServices: j.ClusterServices, Refresh: j.Refresh,
		Follower:   j.Follower,
		Strategies: strategiesOf(j), Store: j.Etcd,
		APIServers: j.APIServers, GateWait: j.GateWait.Duration, Actions: j.Actions, Common: *m.Spec.DeepCopy(),
	}, nil
}
