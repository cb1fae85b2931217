package switchover

import (
	"net/netip"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
)

// Field of a Migration that has the job.
const Field = "spec.cni"

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// From is empty until someone has looked at the cluster.
	From, To  v1alpha1.CNIName
	Manifests []string
	// PodCIDR is not valid if the manifests are to say it.
	PodCIDR netip.Prefix
	// Quiet says that the cluster has to be proven to serve no one, within Window.
	Quiet  bool
	Window time.Duration
	Ignore []netip.Prefix
	// Vouch is the operator's word for what cannot be seen, VouchQuiet the ranges of Ignore that
	// have no clients.
	Vouch      v1alpha1.CNIVouchSpec
	VouchQuiet []netip.Prefix
	Nodes      v1alpha1.CNINodesSpec
	// InPlace says how nodes are switched one by one; Serving, that they are: the cluster serves
	// meanwhile.
	InPlace v1alpha1.CNIInPlaceSpec
	Serving bool
	// ReplaceProxy says that Cilium takes the place of kube-proxy.
	ReplaceProxy bool
	Policies     v1alpha1.PolicyLoss
	Canary       v1alpha1.PodCanarySpec
	GateWait     time.Duration
	// Spares says what gets one more pod before nodes are emptied.
	Spares spare.Spec
	// Again is how often all pods are recreated once more.
	Again int32
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}
