// Package services knows which Services there are, and how each gets to its other address. It decides
// and writes nothing: inventory.go makes the Inventory that all other rooms read.
package services

import (
	"net/netip"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// Mode is what is done to the ranges.
	Mode v1alpha1.ServiceCIDRMode
	// To is the target range, From what is to be emptied. Resolve fills in what the Migration
	// leaves open.
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
	// Strategies say how Services move, Store how the etcd is reached that API servers keep them
	// in; nil, if it is not.
	Strategies Strategies
	Store      *v1alpha1.StoreSpec
	// Actions do what gates wait for; nil if none does.
	Actions *v1alpha1.GateActions
	// Common is what all kinds of migrations have: tiers, windows, hooks, freeze, backups.
	Common v1alpha1.MigrationSpec
}
