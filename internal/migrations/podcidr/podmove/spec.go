// Package podmove has what both ways to move pods have in common: job, inventory, checks and steps.
package podmove

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
)

// Field of a Migration that has the job.
const Field = "spec.podCIDR"

// Spec is the job, read, defaulted and validated.
type Spec struct {
	Name string
	// From are the ranges to be emptied, To their successors. The inventory resolves an open From.
	From, To []netip.Prefix
	// BlockSize is the prefix length of blocks in the targets; zero means as before.
	BlockSize int
	Networks  []netip.Prefix
	// Prepare says what gets one more pod before anything is restarted.
	Prepare v1alpha1.PrepareMode
	Scale   []types.NamespacedName
	Canary  v1alpha1.PodCanarySpec
	// Tunnels says whether nodes keep the old addresses of their tunnels.
	Tunnels v1alpha1.TunnelsMode
	Roll    v1alpha1.RollSpec
	// Nodes is how nodes with ranges move, Agents the DaemonSets to restart there.
	Nodes  v1alpha1.NodeRangesSpec
	Agents []types.NamespacedName
	Common v1alpha1.MigrationSpec
}

func (s *Spec) Left(d engine.Direction) []netip.Prefix {
	if d == engine.Backward {
		return s.To
	}
	return s.From
}

func (s *Spec) Spares() spare.Spec {
	return spare.Spec{Migration: s.Name, Mode: s.Prepare, Deployments: s.Scale}
}
