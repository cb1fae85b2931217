// Package mirror has a second cluster serve while the network of the first is changed, and switches
// back. plan.go lists the phases in order.
package mirror

import (
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	Name         string
	Target       v1alpha1.ClusterReference
	Copy         v1alpha1.CopySpec
	Hosts        []v1alpha1.HostAlias
	Certificates v1alpha1.CertificateMode
	Singletons   v1alpha1.SingletonSpec
	Redirect     v1alpha1.RedirectSpec
	Canary       v1alpha1.PodCanarySpec
	// FreezeKinds are frozen beside those that always are, as resource.group.
	FreezeKinds []string
	GateWait    time.Duration
	Common      v1alpha1.MigrationSpec
}

const root = "spec.mirror"

// keeps reports whether the provider can have the record of a name.
func (s *Spec) keeps(name string) bool {
	p := s.Redirect.Provider
	return p != nil && (p.RFC2136 == nil || dns.IsSubDomain(dns.CanonicalName(p.RFC2136.Zone), dns.CanonicalName(name)))
}

// aliases are those that certificates are to have.
func (s *Spec) aliases() []v1alpha1.HostAlias {
	if s.Certificates != v1alpha1.CertificatesExtend {
		return nil
	}
	return s.Hosts
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) { spec.Default(m) }

// Validate turns a defaulted Migration into a Spec. It fails with all errors: see spec.Refuse.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	if err := spec.Refuse(spec.Validate(m, phaseNames())); err != nil {
		return Spec{}, err
	}
	j := m.Spec.Mirror
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names another job", Hint: "set " + root + ".target"}
	}
	return Spec{
		Name: m.Name, Target: j.Target, Copy: j.Copy, Hosts: j.Hosts, Certificates: j.Certificates, Singletons: j.Singletons,
		Redirect: j.Redirect, Canary: j.Canary, FreezeKinds: j.FreezeKinds, GateWait: j.GateWait.Duration,
		Common: *m.Spec.DeepCopy(),
	}, nil
}
