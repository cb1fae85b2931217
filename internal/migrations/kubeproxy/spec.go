// Package kubeproxy has kube-proxy write its rules another way, node by node, in a cluster that
// serves: plan.go lists the phases in order.
package kubeproxy

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

const root = "spec.kubeProxy"

// Spec is the job, read, defaulted and validated.
type Spec struct {
	Name string
	// Mode is the one that kube-proxy is to have.
	Mode v1alpha1.KubeProxyMode
	// First are nodes that go first, and Parallel how many are changed at once.
	First    []string
	Parallel int
	// Program is how kube-proxy is restarted where it is a program of nodes; nil for pods of one
	// DaemonSet.
	Program *v1alpha1.KubeProxyProgramSpec
	// Common is what all kinds have.
	Common v1alpha1.MigrationSpec
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with all errors: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, phaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.KubeProxy
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names another job", Hint: "set " + root + ".mode"}
	}
	return Spec{
		Name: m.Name, Mode: j.Mode, First: j.Nodes.First, Parallel: max(1, j.Nodes.Parallel), Program: j.Program.DeepCopy(),
		Common: *m.Spec.DeepCopy(),
	}, nil
}
