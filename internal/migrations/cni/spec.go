// Package cni replaces what gives pods their network: on a cluster that serves no one all at once (plan.go lists the phases in order), and
// on one that serves node by node (plan_inplace.go does).
package cni

import (
	"net/netip"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/spec"
)

const root = "spec.cni"

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
	// Vouch is the operator's word for what cannot be seen, VouchQuiet the ranges of Ignore that have no clients.
	Vouch      v1alpha1.CNIVouchSpec
	VouchQuiet []netip.Prefix
	Nodes      v1alpha1.CNINodesSpec
	// InPlace says how nodes are switched one by one; Serving, that they are: the cluster serves meanwhile.
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

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with everything that is wrong in it: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, PhaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.CNI
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names another job", Hint: "set " + root + ".to and " + root + ".manifests"}
	}
	s := Spec{
		Name:         m.Name,
		From:         j.From,
		To:           j.To,
		Manifests:    j.Manifests,
		Quiet:        j.Traffic.Proof == v1alpha1.TrafficCounters && j.Mode != v1alpha1.CNIInPlace,
		Window:       j.Traffic.Window.Duration,
		Ignore:       spec.Prefixes(j.Traffic.Ignore),
		Nodes:        j.Nodes,
		Policies:     j.Policies,
		Canary:       j.Canary,
		Vouch:        j.Vouch,
		VouchQuiet:   spec.Prefixes(j.Vouch.Quiet),
		GateWait:     j.GateWait.Duration,
		Common:       *m.Spec.DeepCopy(),
		InPlace:      j.InPlace,
		Serving:      j.Mode == v1alpha1.CNIInPlace,
		ReplaceProxy: j.KubeProxy == v1alpha1.KubeProxyReplace,
		Again:        j.Again,
		Spares:       spare.Spec{Migration: m.Name, Mode: j.Prepare.Mode, Deployments: spec.Names(j.Prepare.Deployments)},
	}
	if j.PodCIDR != "" {
		s.PodCIDR = spec.Prefixes([]string{j.PodCIDR})[0]
	}
	return s, nil
}
