// Package podcidr moves the pods of a live cluster to another range. plan.go lists the phases in order.
package podcidr

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// From are the ranges to be emptied, To those that take over from them, one each. The survey fills in a From that the
	// Migration leaves open.
	From, To []netip.Prefix
	// BlockSize is the prefix length of blocks in the targets; zero means as before.
	BlockSize int
	// Networks are ranges outside the cluster that the targets must not overlap.
	Networks []netip.Prefix
	// Prepare says what gets one more pod before anything is restarted.
	Prepare v1alpha1.PrepareMode
	Scale   []types.NamespacedName
	Canary  v1alpha1.PodCanarySpec
	// Tunnels says whether nodes keep the old addresses of their tunnels.
	Tunnels v1alpha1.TunnelsMode
	Roll    v1alpha1.RollSpec
	// Nodes is how nodes are moved that carry their range, Agents the DaemonSets to be restarted there.
	Nodes  v1alpha1.NodeRangesSpec
	Agents []types.NamespacedName
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}

const root = "spec.podCIDR"

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with everything that is wrong in it: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, PhaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.PodCIDR
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names another job", Hint: "set " + root + ".to"}
	}
	return Spec{
		Name: m.Name, From: spec.Prefixes(j.From), To: spec.Prefixes(j.To), BlockSize: j.BlockSize, Networks: spec.Prefixes(j.Networks),
		Prepare: j.Prepare.Mode, Scale: spec.Names(j.Prepare.Deployments), Canary: j.Canary, Tunnels: j.Tunnels.Mode, Roll: j.Roll,
		Nodes: j.Nodes, Agents: spec.Names(j.Nodes.Agents), Common: *m.Spec.DeepCopy(),
	}, nil
}
