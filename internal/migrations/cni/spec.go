// Package cni replaces the network of pods: drained in a cluster that serves no one, all at once,
// and inplace in one that serves, node by node; proxy has Cilium take the place of kube-proxy as
// well.
package cni

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec = switchover.Spec

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with everything that is wrong in it:
// see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, phaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.CNI
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names another job", Hint: "set " + switchover.Field + ".to and " + switchover.Field + ".manifests"}
	}
	s := Spec{
		Name:         m.Name,
		From:         j.From,
		To:           j.To,
		Manifests:    j.Manifests,
		Quiet:        j.Traffic.Proof == v1alpha1.TrafficCounters,
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
