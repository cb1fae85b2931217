// Package services knows which Services there are, and how each gets to its other address.
// inventory.go makes the Inventory that all other rooms read.
package services

import (
	"net/netip"
	"slices"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	Name string
	Mode v1alpha1.ServiceCIDRMode
	// Resolve fills in what the Migration leaves open of To and From.
	To, From []netip.Prefix
	Networks []netip.Prefix
	Overlap  v1alpha1.OverlapForm
	Bridge   v1alpha1.BridgeForm
	// BridgeLabels are on bridges beside replumb's own.
	BridgeLabels map[string]string
	Domain       string
	Drain        time.Duration
	Barrier      v1alpha1.BarrierMode
	BarrierWait  time.Duration
	Batch        int
	Settle       time.Duration
	// ClusterServices says whether kube-dns and kubernetes move too.
	ClusterServices v1alpha1.ClusterServicesPolicy
	Refresh         v1alpha1.RefreshSpec
	Follower        v1alpha1.FollowerMode
	// APIServers are host:port of every API server; empty means the endpoints of kubernetes.
	APIServers []string
	GateWait   time.Duration
	// Store is how the API servers' etcd is reached; nil, if it is not.
	Strategies Strategies
	Store      *v1alpha1.StoreSpec
	Actions    *v1alpha1.GateActions
	// Gates says who passes gates without an action, but for Manual.
	Gates  v1alpha1.GatesMode
	Manual []v1alpha1.GateName
	// Common is what all kinds of migrations have: tiers, windows, hooks, freeze, backups.
	Common v1alpha1.MigrationSpec
}

// ByKubeadm reports whether replumb passes a gate itself, by what kubeadm has written.
func (s *Spec) ByKubeadm(gate v1alpha1.GateName) bool {
	return s.Gates == v1alpha1.GatesKubeadm && !slices.Contains(s.Manual, gate) && s.Action(gate) == nil
}

// Action is that of a gate; nil, if it has none.
func (s *Spec) Action(gate v1alpha1.GateName) *v1alpha1.Action {
	if s.Actions == nil {
		return nil
	}
	return map[v1alpha1.GateName]*v1alpha1.Action{
		v1alpha1.GateCertificates: s.Actions.Certificates, v1alpha1.GateKubelets: s.Actions.Kubelets, v1alpha1.GateAPIServers: s.Actions.APIServers,
	}[gate]
}
