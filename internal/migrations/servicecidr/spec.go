// Package servicecidr moves the Services of a live cluster to another Service range. plan.go lists the phases in order.
package servicecidr

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name string
	// Mode is what is done to the ranges.
	Mode v1alpha1.ServiceCIDRMode
	// To is the target range, From what is to be emptied. Resolve fills in what the Migration leaves open.
	To, From []netip.Prefix
	// Networks are ranges outside the cluster that the target must not overlap.
	Networks    []netip.Prefix
	Bridge      v1alpha1.BridgeForm
	Domain      string
	Drain       time.Duration
	Barrier     v1alpha1.BarrierMode
	BarrierWait time.Duration
	Batch       int
	Settle      time.Duration
	// ClusterServices says whether kube-dns and kubernetes move too.
	ClusterServices v1alpha1.ClusterServicesPolicy
	Refresh         v1alpha1.RefreshSpec
	// APIServers are host:port of every API server; empty means the endpoints of kubernetes.
	APIServers []string
	GateWait   time.Duration
	// Common is what all kinds of migrations have: tiers, windows, hooks, freeze, backups.
	Common v1alpha1.MigrationSpec
}

// SpecError says which field of a Migration is wrong, and what to do.
type SpecError = spec.Error

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	spec.Default(&m.Spec)
	s := m.Spec.ServiceCIDR
	if s == nil {
		return
	}
	s.Mode = cmp.Or(s.Mode, v1alpha1.ModeMove)
	s.Bridge = cmp.Or(s.Bridge, v1alpha1.BridgeAuto)
	s.ClusterDomain = cmp.Or(s.ClusterDomain, "cluster.local")
	s.ClusterServices = cmp.Or(s.ClusterServices, v1alpha1.ClusterServicesMove)
	s.Refresh.Mode = cmp.Or(s.Refresh.Mode, v1alpha1.RefreshRestart)
	s.Refresh.BarePods = cmp.Or(s.Refresh.BarePods, v1alpha1.BarePodsReport)
	s.Refresh.Parallel = cmp.Or(s.Refresh.Parallel, 2)
	orDuration(&s.Refresh.Timeout, 10*time.Minute)
	orDuration(&s.Drain, time.Minute)
	orDuration(&s.Barrier.Wait, 10*time.Second)
	orDuration(&s.GateWait, time.Hour)
}

func orDuration(d **metav1.Duration, otherwise time.Duration) {
	if *d == nil {
		*d = &metav1.Duration{Duration: otherwise}
	}
}

// Validate turns a defaulted Migration into a Spec.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	j := m.Spec.ServiceCIDR
	if j == nil {
		return Spec{}, &SpecError{Field: "spec", Problem: "names no job", Hint: "set spec.serviceCIDR.to"}
	}
	if problems := validation.IsDNS1123Label(m.Name); len(problems) > 0 {
		return Spec{}, &SpecError{
			Field: "metadata.name", Problem: fmt.Sprintf("%q cannot be used: %s", m.Name, problems[0]),
			Hint: "name the Migration with lower-case letters, digits and dashes, at most 63",
		}
	}
	s := Spec{
		Name: m.Name, Bridge: j.Bridge, Domain: j.ClusterDomain, Drain: j.Drain.Duration, Barrier: j.Barrier.Mode,
		BarrierWait: j.Barrier.Wait.Duration, Batch: m.Spec.Batch.Size, Settle: m.Spec.Batch.Settle.Duration,
		Mode: j.Mode, ClusterServices: j.ClusterServices, Refresh: j.Refresh, APIServers: j.APIServers, GateWait: j.GateWait.Duration,
		Common: *m.Spec.DeepCopy(),
	}
	if err := spec.Validate(&m.Spec, PhaseNames()); err != nil {
		return Spec{}, err
	}
	if err := validateChoices(m); err != nil {
		return Spec{}, err
	}
	var err error
	if s.To, err = ranges("spec.serviceCIDR.to", j.To); err != nil {
		return Spec{}, err
	}
	if s.From, err = ranges("spec.serviceCIDR.from", j.From); err != nil {
		return Spec{}, err
	}
	if s.Networks, err = ranges("spec.serviceCIDR.networks", j.Networks); err != nil {
		return Spec{}, err
	}
	if err := validateMode(s); err != nil {
		return Spec{}, err
	}
	return s, validateRanges(s)
}

// validateMode refuses what contradicts itself.
func validateMode(s Spec) error {
	const to, from = "spec.serviceCIDR.to", "spec.serviceCIDR.from"
	switch {
	case len(s.To) == 0 && s.Mode != v1alpha1.ModeRetire:
		return &SpecError{Field: to, Problem: "is empty", Hint: "name the target range, such as 172.24.0.0/16"}
	case len(s.From) != 1 && s.Mode == v1alpha1.ModeRetire:
		return &SpecError{
			Field:   from,
			Problem: fmt.Sprintf("names %d ranges, and mode Retire takes one", len(s.From)),
			Hint:    "name the range to empty and delete",
		}
	case len(s.From) > 0 && s.Mode == v1alpha1.ModeExtend:
		return &SpecError{Field: from, Problem: "contradicts mode Extend, which empties nothing", Hint: "remove it, or set mode: Move"}
	}
	for i, a := range s.APIServers {
		if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
			return &SpecError{
				Field: fmt.Sprintf("spec.serviceCIDR.apiServers[%d]", i), Problem: fmt.Sprintf("%q is not host:port", a),
				Hint: "write it like 192.0.2.10:6443",
			}
		}
	}
	return nil
}

func validateChoices(m *v1alpha1.Migration) error {
	j := m.Spec.ServiceCIDR
	for _, f := range []struct {
		field, value string
		allowed      []string
	}{
		{"spec.serviceCIDR.bridge", string(j.Bridge), []string{"Auto", "ExternalIPs", "LoadBalancer"}},
		{"spec.serviceCIDR.mode", string(j.Mode), []string{"Move", "Extend", "Retire"}},
		{"spec.serviceCIDR.clusterServices", string(j.ClusterServices), []string{"Move", "Stay"}},
		{"spec.serviceCIDR.refresh.mode", string(j.Refresh.Mode), []string{"Restart", "Report"}},
		{"spec.serviceCIDR.refresh.barePods", string(j.Refresh.BarePods), []string{"Report", "Evict"}},
		{"spec.serviceCIDR.barrier.mode", string(j.Barrier.Mode), []string{"", "HealthCheck", "Agent", "Wait"}},
	} {
		if !contains(f.allowed, f.value) {
			return &SpecError{
				Field:   f.field,
				Problem: fmt.Sprintf("%q is not known", f.value),
				Hint:    fmt.Sprintf("use one of %v", f.allowed),
			}
		}
	}
	for field, d := range map[string]*metav1.Duration{
		"spec.serviceCIDR.drain": j.Drain, "spec.serviceCIDR.barrier.wait": j.Barrier.Wait,
		"spec.serviceCIDR.refresh.timeout": j.Refresh.Timeout, "spec.serviceCIDR.gateWait": j.GateWait,
	} {
		if d.Duration < 0 {
			return &SpecError{Field: field, Problem: "is negative", Hint: "write a duration such as 60s"}
		}
	}
	if j.Refresh.Parallel < 1 || j.Refresh.Parallel > 100 {
		return &SpecError{
			Field:   "spec.serviceCIDR.refresh.parallel",
			Problem: fmt.Sprintf("%d is not within 1 and 100", j.Refresh.Parallel),
			Hint:    "2 is a good number",
		}
	}
	if problems := validation.IsDNS1123Subdomain(j.ClusterDomain); len(problems) > 0 {
		return &SpecError{
			Field:   "spec.serviceCIDR.clusterDomain",
			Problem: fmt.Sprintf("%q is not a domain", j.ClusterDomain),
			Hint:    "write it as kubelet's clusterDomain has it, such as cluster.local",
		}
	}
	return nil
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

func ranges(field string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for i, text := range texts {
		at := fmt.Sprintf("%s[%d]", field, i)
		p, err := cidr.Parse(text)
		var hostBits *cidr.HostBitsError
		if errors.As(err, &hostBits) {
			return nil, &SpecError{Field: at, Problem: err.Error(), Hint: fmt.Sprintf("did you mean %s?", hostBits.Prefix.Masked())}
		}
		if err != nil {
			return nil, &SpecError{Field: at, Problem: err.Error(), Hint: "write a range such as 172.24.0.0/16"}
		}
		all = append(all, p)
	}
	return all, nil
}

func validateRanges(s Spec) error {
	const to = "spec.serviceCIDR.to"
	for i, a := range s.To {
		if a.Addr().Is4() != s.To[0].Addr().Is4() {
			return &SpecError{Field: to, Problem: "mixes IPv4 and IPv6", Hint: "move one family at a time"}
		}
		for _, b := range s.To[:i] {
			if a.Overlaps(b) {
				return &SpecError{Field: to, Problem: fmt.Sprintf("%s overlaps %s", a, b), Hint: "name ranges that do not overlap"}
			}
		}
		for _, b := range s.From {
			if a.Overlaps(b) {
				return &SpecError{
					Field:   to,
					Problem: fmt.Sprintf("%s overlaps %s in spec.serviceCIDR.from", a, b),
					Hint:    "choose a target outside the range that is to be emptied",
				}
			}
			if a.Addr().Is4() != b.Addr().Is4() {
				return &SpecError{
					Field:   "spec.serviceCIDR.from",
					Problem: fmt.Sprintf("%s is not of the family of the target %s", b, a),
					Hint:    "move one family at a time",
				}
			}
		}
	}
	return nil
}
