// Package podcidr moves pods of a live cluster to another range: pools for Calico's pools,
// noderanges for ranges of Nodes.
package podcidr

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec = podmove.Spec

const root = podmove.Field

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with all errors: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, phaseNames())); err != nil {
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
