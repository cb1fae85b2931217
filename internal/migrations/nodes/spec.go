// Package nodes moves the nodes of a live cluster to another network. plan.go lists the phases in order.
package nodes

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// Old are the nodes that leave, New those that take over.
	Old, New Set
	Join     v1alpha1.JoinSpec
	Canary   v1alpha1.PodCanarySpec
	Ingress  v1alpha1.IngressSpec
	// Services are those of Ingress by name; none means whichever need it.
	Services []types.NamespacedName
	Drain    v1alpha1.NodeDrainSpec
	// Force and First are those of Drain by name.
	Force, First []types.NamespacedName
	// Spares says what gets one more pod before nodes are emptied.
	Spares    spare.Spec
	Terminate v1alpha1.TerminateSpec
	Records   []v1alpha1.RecordSpec
	// ControlPlane is nil if it stays.
	ControlPlane *v1alpha1.ControlPlaneSpec
	GateWait     time.Duration
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}

const root = "spec.nodes"

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with everything that is wrong in it: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	bad := spec.Validate(m, PhaseNames())
	j := m.Spec.Nodes
	if j == nil {
		bad = append(bad, spec.Wrong("spec", "names another job", "set "+root+".old and "+root+".new"))
		return Spec{}, spec.Refuse(bad)
	}
	old, wrongOld := newSet(root+".old", &j.Old)
	to, wrongNew := newSet(root+".new", &j.New)
	bad = slices.Concat(bad, wrongOld, wrongNew, validateProviderIDs(j), validateRecords(root+".records", j.Records))
	if j.ControlPlane != nil {
		bad = append(bad, validateRecords(root+".controlPlane.records", j.ControlPlane.Records)...)
	}
	if err := spec.Refuse(bad); err != nil {
		return Spec{}, err
	}
	return Spec{
		Name: m.Name, Old: old, New: to, Join: j.Join, Canary: j.Canary, Ingress: j.Ingress, Services: spec.Names(j.Ingress.Services),
		Drain: j.Drain, Force: spec.Names(j.Drain.Force), First: spec.Names(j.Drain.First), Terminate: j.Terminate, Records: j.Records,
		Spares:       spare.Spec{Migration: m.Name, Mode: j.Prepare.Mode, Deployments: spec.Names(j.Prepare.Deployments)},
		ControlPlane: j.ControlPlane, GateWait: j.GateWait.Duration, Common: *m.Spec.DeepCopy(),
	}, nil
}

// validateProviderIDs refuses nodes that leave and come at once: there may be too many for a rule of the schema.
func validateProviderIDs(j *v1alpha1.NodesSpec) (bad field.ErrorList) {
	leaving := map[string]bool{}
	for _, id := range j.Old.ProviderIDs {
		leaving[id] = true
	}
	for _, id := range j.New.ProviderIDs {
		if leaving[id] {
			bad = append(bad,
				spec.Wrong(root+".new.providerIDs", id+" is in "+root+".old.providerIDs as well", "name it in one of the two"))
		}
	}
	return bad
}

// validateRecords sees that names are in the zones that are to be changed for them.
func validateRecords(path string, all []v1alpha1.RecordSpec) (bad field.ErrorList) {
	for i := range all {
		at := fmt.Sprintf("%s[%d]", path, i)
		bad = append(bad, dnsrecords.ValidateZone(at, &all[i])...)
		bad = append(bad, dnsrecords.ValidateAliases(at, &all[i])...)
	}
	return bad
}

// external reports whether the control plane moves, and its etcd does not.
func (s *Spec) external() bool { return s.ControlPlane != nil && s.ControlPlane.Etcd.External }

// parallel is how many of so many nodes are emptied at once.
func (s *Spec) parallel(all int) int {
	n, _ := intstr.GetScaledValueFromIntOrPercent(s.Drain.Parallel, all, true) // validated
	return max(1, n)
}
