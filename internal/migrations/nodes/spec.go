// Package nodes moves the nodes of a live cluster to another network. plan.go lists the phases.
package nodes

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	Name     string
	Old, New NodeSet
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

// Validate turns a defaulted Migration into a Spec. It fails with all errors: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	bad := spec.Validate(m, phaseNames())
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

// validateProviderIDs refuses nodes that leave and come at once.
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

// NodeSet is a v1alpha1.NodeSet that has been read.
type NodeSet struct {
	CIDRs []netip.Prefix

	selector    labels.Selector
	providerIDs []string
}

func newSet(path string, s *v1alpha1.NodeSet) (set NodeSet, bad field.ErrorList) {
	set = NodeSet{providerIDs: s.ProviderIDs, CIDRs: spec.Prefixes(s.CIDRs)}
	if s.Selector == nil {
		return set, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Selector)
	switch {
	case err != nil:
		bad = append(bad, spec.Wrong(path+".selector", err.Error(), "write matchLabels, or matchExpressions"))
	case selector.Empty():
		bad = append(bad, spec.Wrong(path+".selector", "chooses every node", "name a label, or leave it out"))
	}
	set.selector = selector
	return set, bad
}

// Has reports whether a node is meant.
func (s NodeSet) Has(n *corev1.Node) bool {
	if s.selector == nil && len(s.providerIDs) == 0 {
		return s.isInside(n)
	}
	return (s.selector == nil || s.selector.Matches(labels.Set(n.Labels))) &&
		(len(s.providerIDs) == 0 || slices.Contains(s.providerIDs, n.Spec.ProviderID))
}

// WrongNetwork says that a chosen node is not in the network; nothing, if it is.
func (s NodeSet) WrongNetwork(n *corev1.Node) string {
	if len(s.CIDRs) == 0 || s.isInside(n) {
		return ""
	}
	return fmt.Sprintf("node %s has the addresses %v, none of which is in %v", n.Name, addresses(n), s.CIDRs)
}

func (s NodeSet) isInside(n *corev1.Node) bool {
	return slices.ContainsFunc(addresses(n), func(a netip.Addr) bool {
		return slices.ContainsFunc(s.CIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

func addresses(n *corev1.Node) []netip.Addr {
	var all []netip.Addr
	for _, a := range n.Status.Addresses {
		if parsed, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			all = append(all, parsed.Unmap())
		}
	}
	return all
}
