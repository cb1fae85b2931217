// Package cni replaces what gives pods their network, on a cluster that serves nobody. plan.go lists the phases in order.
package cni

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec"
)

const root = "spec.cni"

// Defaults.
const (
	defaultWindow   = 30 * time.Second
	maxWindow       = time.Hour
	defaultGateWait = time.Hour
	defaultCall     = 30 * time.Minute
	defaultParallel = 10
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// From is empty until somebody has looked at the cluster.
	From, To  v1alpha1.CNIName
	Manifests []string
	// PodCIDR is not valid if the manifests are to say it.
	PodCIDR netip.Prefix
	// Quiet says that the cluster has to be proven to serve nobody, within Window.
	Quiet    bool
	Window   time.Duration
	Ignore   []netip.Prefix
	Nodes    v1alpha1.CNINodesSpec
	Policies v1alpha1.PolicyLoss
	Canary   v1alpha1.PodCanarySpec
	GateWait time.Duration
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	spec.Default(&m.Spec)
	s := m.Spec.CNI
	if s == nil {
		return
	}
	s.Mode = cmp.Or(s.Mode, v1alpha1.CNIDrained)
	s.Traffic.Proof = cmp.Or(s.Traffic.Proof, v1alpha1.TrafficCounters)
	s.Nodes.Mode = cmp.Or(s.Nodes.Mode, v1alpha1.CNINodesInPlace)
	s.Nodes.Parallel = cmp.Or(s.Nodes.Parallel, defaultParallel)
	s.Policies = cmp.Or(s.Policies, v1alpha1.PolicyRefuse)
	s.Canary.Mode = cmp.Or(s.Canary.Mode, v1alpha1.PodCanaryRun)
	if s.Traffic.Window == nil {
		s.Traffic.Window = &metav1.Duration{Duration: defaultWindow}
	}
	if s.GateWait == nil {
		s.GateWait = &metav1.Duration{Duration: defaultGateWait}
	}
	if a := s.Nodes.Replace; a != nil && a.Timeout == nil {
		a.Timeout = &metav1.Duration{Duration: defaultCall}
	}
}

// Validate turns a defaulted Migration into a Spec. It fails with a *spec.Error.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	j := m.Spec.CNI
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names no job", Hint: "set " + root + ".to and " + root + ".manifests"}
	}
	if err := spec.Validate(&m.Spec, PhaseNames()); err != nil {
		return Spec{}, err
	}
	s := Spec{
		Name: m.Name, From: j.From, To: j.To, Manifests: j.Manifests, Quiet: j.Traffic.Proof == v1alpha1.TrafficCounters,
		Window: j.Traffic.Window.Duration, Nodes: j.Nodes, Policies: j.Policies, Canary: j.Canary, GateWait: j.GateWait.Duration,
		Common: *m.Spec.DeepCopy(),
	}
	for _, check := range []func(*v1alpha1.CNISpec) error{
		s.validateNetworks, s.validateChoices, s.validateRanges, s.validateTimes, s.validateReplace,
	} {
		if err := check(j); err != nil {
			return Spec{}, err
		}
	}
	return s, nil
}

func known() []string {
	return []string{string(v1alpha1.Flannel), string(v1alpha1.Calico), string(v1alpha1.Canal), string(v1alpha1.Cilium)}
}

func (s *Spec) validateNetworks(j *v1alpha1.CNISpec) error {
	for field, name := range map[string]v1alpha1.CNIName{"from": j.From, "to": j.To} {
		if (field == "to" || name != "") && !slices.Contains(known(), string(name)) {
			return &spec.Error{
				Field: root + "." + field, Problem: fmt.Sprintf("%q is not known", name), Hint: fmt.Sprintf("use one of %v", known()),
			}
		}
	}
	if j.From == j.To {
		return &spec.Error{Field: root + ".to", Problem: fmt.Sprintf("is %s, as is %s.from", j.To, root), Hint: "name another network"}
	}
	if len(j.Manifests) == 0 {
		return &spec.Error{
			Field:   root + ".manifests",
			Problem: "is empty",
			Hint:    "name the files or folders with what the new network needs, such as [calico.yaml]",
		}
	}
	return nil
}

func (s *Spec) validateChoices(j *v1alpha1.CNISpec) error {
	for _, c := range []struct {
		field, value string
		allowed      []string
	}{
		{"mode", string(j.Mode), []string{string(v1alpha1.CNIDrained)}},
		{"traffic.proof", string(j.Traffic.Proof), []string{string(v1alpha1.TrafficCounters), string(v1alpha1.TrafficAcceptDowntime)}},
		{"nodes.mode", string(j.Nodes.Mode), []string{string(v1alpha1.CNINodesInPlace), string(v1alpha1.CNINodesReplace)}},
		{"policies", string(j.Policies), []string{string(v1alpha1.PolicyRefuse), string(v1alpha1.PolicyDrop)}},
		{"canary.mode", string(j.Canary.Mode), []string{string(v1alpha1.PodCanaryRun), string(v1alpha1.PodCanaryDisabled)}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return &spec.Error{
				Field:   root + "." + c.field,
				Problem: fmt.Sprintf("%q is not known", c.value),
				Hint:    fmt.Sprintf("use one of %v", c.allowed),
			}
		}
	}
	if j.Nodes.Parallel < 1 {
		return &spec.Error{Field: root + ".nodes.parallel", Problem: fmt.Sprintf("is %d", j.Nodes.Parallel), Hint: "leave it out for 10"}
	}
	return nil
}

func (s *Spec) validateRanges(j *v1alpha1.CNISpec) (err error) {
	if j.PodCIDR != "" {
		if s.PodCIDR, err = cidr.Parse(j.PodCIDR); err != nil {
			return &spec.Error{Field: root + ".podCIDR", Problem: err.Error(), Hint: "write a range such as 10.244.0.0/16"}
		}
	}
	for i, text := range j.Traffic.Ignore {
		p, err := cidr.Parse(text)
		if err != nil {
			return &spec.Error{
				Field: fmt.Sprintf("%s.traffic.ignore[%d]", root, i), Problem: err.Error(), Hint: "write a range such as 192.0.2.0/24",
			}
		}
		s.Ignore = append(s.Ignore, p)
	}
	return nil
}

func (s *Spec) validateTimes(*v1alpha1.CNISpec) error {
	for _, d := range []struct {
		field     string
		value     time.Duration
		low, high time.Duration
		hint      string
	}{
		{"traffic.window", s.Window, 4 * time.Second, maxWindow, "leave it out for 30s"},
		{"gateWait", s.GateWait, time.Second, 7 * 24 * time.Hour, "leave it out for 1h"},
	} {
		if d.value < d.low || d.value > d.high {
			return &spec.Error{
				Field: root + "." + d.field, Problem: fmt.Sprintf("%s is not within %s and %s", d.value, d.low, d.high), Hint: d.hint,
			}
		}
	}
	return nil
}

func (s *Spec) validateReplace(j *v1alpha1.CNISpec) error {
	a := j.Nodes.Replace
	switch {
	case a == nil:
		return nil
	case j.Nodes.Mode != v1alpha1.CNINodesReplace:
		return &spec.Error{
			Field:   root + ".nodes.replace",
			Problem: "is set, and " + root + ".nodes.mode is " + string(j.Nodes.Mode),
			Hint:    "set mode: Replace",
		}
	case (a.Exec == nil) == (a.HTTP == nil):
		return &spec.Error{Field: root + ".nodes.replace", Problem: "needs exactly one of exec and http", Hint: "see docs/hooks.md"}
	case a.Timeout.Duration <= 0:
		return &spec.Error{Field: root + ".nodes.replace.timeout", Problem: "is not positive", Hint: "leave it out for 30m"}
	}
	return nil
}
