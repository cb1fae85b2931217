// Package mirror has a second cluster serve what a live one serves, for as long as that one's network is changed, and takes it
// back. plan.go lists the phases in order.
package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec struct {
	// Name of the Migration.
	Name         string
	Target       v1alpha1.ClusterReference
	Copy         v1alpha1.CopySpec
	Hosts        []v1alpha1.HostAlias
	Certificates v1alpha1.CertificateMode
	Singletons   v1alpha1.SingletonSpec
	Redirect     v1alpha1.RedirectSpec
	GateWait     time.Duration
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}

const root = "spec.mirror"

// Defaults.
const (
	defaultGateWait = time.Hour
	defaultParallel = 16
	defaultCall     = 30 * time.Minute
	maxCall         = 6 * time.Hour
)

// ownNamespaces are copied by nobody: they belong to the cluster, or to replumb.
func ownNamespaces() []string {
	return []string{
		metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease", v1alpha1.SystemNamespace,
	}
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	spec.Default(&m.Spec)
	s := m.Spec.Mirror
	if s == nil {
		return
	}
	s.Certificates = cmp.Or(s.Certificates, v1alpha1.CertificatesExtend)
	s.Singletons.CronJobs = cmp.Or(s.Singletons.CronJobs, v1alpha1.CronJobsSuspend)
	c := &s.Copy
	c.Existing = cmp.Or(c.Existing, v1alpha1.ExistingRefuse)
	c.NodePorts = cmp.Or(c.NodePorts, v1alpha1.NodePortsKeep)
	c.Volumes = cmp.Or(c.Volumes, v1alpha1.VolumesRefuse)
	c.Parallel = cmp.Or(c.Parallel, defaultParallel)
	if len(c.Namespaces.Include) == 0 {
		for _, own := range ownNamespaces() {
			if !slices.Contains(c.Namespaces.Exclude, own) {
				c.Namespaces.Exclude = append(c.Namespaces.Exclude, own)
			}
		}
	}
	defaultRedirect(&s.Redirect)
	for _, a := range []*v1alpha1.Action{c.VolumeAction, s.Redirect.Quiet} {
		if a != nil && a.Timeout == nil {
			a.Timeout = &metav1.Duration{Duration: defaultCall}
		}
	}
	if s.GateWait == nil {
		s.GateWait = &metav1.Duration{Duration: defaultGateWait}
	}
}

func defaultRedirect(r *v1alpha1.RedirectSpec) {
	if r.TTL == nil {
		r.TTL = ptr.To[int32](dnsrecords.DefaultTTL)
	}
	if r.Drain == nil {
		r.Drain = &metav1.Duration{Duration: dnsrecords.DefaultDrain}
	}
	r.Probe.Path = cmp.Or(r.Probe.Path, "/")
}

// Validate turns a defaulted Migration into a Spec. It fails with a *spec.Error.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	j := m.Spec.Mirror
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names no job", Hint: "set " + root + ".target"}
	}
	if err := spec.Validate(&m.Spec, PhaseNames()); err != nil {
		return Spec{}, err
	}
	s := Spec{
		Name: m.Name, Target: j.Target, Copy: j.Copy, Hosts: j.Hosts, Certificates: j.Certificates, Singletons: j.Singletons,
		Redirect: j.Redirect, GateWait: j.GateWait.Duration, Common: *m.Spec.DeepCopy(),
	}
	for _, check := range []func() error{s.validateTarget, s.validateChoices, s.validateHosts, s.validateSingletons, s.validateActions, s.validateRedirect} {
		if err := check(); err != nil {
			return Spec{}, err
		}
	}
	return s, nil
}

func (s *Spec) validateTarget() error {
	t := s.Target
	if (t.Context == "") == (t.Secret == nil) {
		return &spec.Error{
			Field: root + ".target", Problem: "needs exactly one of context and secret",
			Hint: "name a context of your kubeconfig, or a Secret with a kubeconfig in it",
		}
	}
	if t.Secret != nil && (t.Secret.Namespace == "" || t.Secret.Name == "") {
		return &spec.Error{Field: root + ".target.secret", Problem: "needs a namespace and a name", Hint: "see kubectl get secrets -A"}
	}
	return nil
}

func (s *Spec) validateChoices() error {
	for _, c := range []struct {
		field, value string
		allowed      []string
	}{
		{"certificates", string(s.Certificates), []string{string(v1alpha1.CertificatesExtend), string(v1alpha1.CertificatesLeave)}},
		{"singletons.cronJobs", string(s.Singletons.CronJobs), []string{string(v1alpha1.CronJobsSuspend), string(v1alpha1.CronJobsLeave)}},
		{"copy.existing", string(s.Copy.Existing), []string{
			string(v1alpha1.ExistingRefuse), string(v1alpha1.ExistingKeep), string(v1alpha1.ExistingOverwrite),
		}},
		{"copy.nodePorts", string(s.Copy.NodePorts), []string{string(v1alpha1.NodePortsKeep), string(v1alpha1.NodePortsStrip)}},
		{"copy.volumes", string(s.Copy.Volumes), []string{
			string(v1alpha1.VolumesRefuse), string(v1alpha1.VolumesSkip), string(v1alpha1.VolumesCopy),
		}},
		{"redirect.probe.mode", string(s.Redirect.Probe.Mode), []string{
			"", string(v1alpha1.ProbeHTTP), string(v1alpha1.ProbeHTTPS), string(v1alpha1.ProbeTCP), string(v1alpha1.ProbeOff),
		}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return &spec.Error{
				Field:   root + "." + c.field,
				Problem: fmt.Sprintf("%q is not known", c.value),
				Hint:    "use " + strings.Join(c.allowed, " or "),
			}
		}
	}
	if s.Copy.Parallel < 1 || s.Copy.Parallel > 128 {
		return &spec.Error{
			Field:   root + ".copy.parallel",
			Problem: fmt.Sprintf("%d is not within 1 and 128", s.Copy.Parallel),
			Hint:    "leave it out for 16",
		}
	}
	return nil
}

func (s *Spec) validateHosts() error {
	for i, h := range s.Hosts {
		for _, f := range []struct{ field, value string }{{"name", h.Name}, {"alias", h.Alias}} {
			if problems := hostname(f.value); len(problems) > 0 {
				return &spec.Error{
					Field: fmt.Sprintf("%s.hosts[%d].%s", root, i, f.field), Problem: fmt.Sprintf("%q is no host name", f.value),
					Hint: "write a name in full, such as shop.example.com",
				}
			}
		}
		if h.Name == h.Alias {
			return &spec.Error{
				Field: fmt.Sprintf("%s.hosts[%d].alias", root, i), Problem: "is the name itself",
				Hint: "an alias leads to the mirror while the name does not yet",
			}
		}
	}
	return nil
}

// hostname says what is wrong with one; a wildcard is fine.
func hostname(name string) []string {
	if strings.HasPrefix(name, "*.") {
		return validation.IsWildcardDNS1123Subdomain(name)
	}
	return validation.IsDNS1123Subdomain(name)
}

func (s *Spec) validateSingletons() error {
	for i, w := range s.Singletons.Workloads {
		kind, rest, _ := strings.Cut(w, "/")
		namespace, name, found := strings.Cut(rest, "/")
		known := slices.Contains([]string{"deployment", "statefulset"}, strings.ToLower(kind))
		if !known || !found || namespace == "" || name == "" {
			return &spec.Error{
				Field: fmt.Sprintf("%s.singletons.workloads[%d]", root, i), Problem: fmt.Sprintf("%q is not kind/namespace/name", w),
				Hint: "write deployment/shop/mailer or statefulset/shop/queue",
			}
		}
	}
	return nil
}

func (s *Spec) validateActions() error {
	for _, a := range []struct {
		field  string
		action *v1alpha1.Action
	}{{"copy.volumeAction", s.Copy.VolumeAction}, {"redirect.quiet", s.Redirect.Quiet}} {
		if a.action == nil {
			continue
		}
		if (a.action.Exec == nil) == (a.action.HTTP == nil) {
			return &spec.Error{Field: root + "." + a.field, Problem: "needs exactly one of exec and http", Hint: "see docs/hooks.md"}
		}
		if t := a.action.Timeout.Duration; t <= 0 || t > maxCall {
			return &spec.Error{
				Field: root + "." + a.field + ".timeout", Problem: fmt.Sprintf("%s is not within 1s and %s", t, maxCall),
				Hint: "leave it out for 30m",
			}
		}
	}
	if s.Copy.VolumeAction != nil && s.Copy.Volumes != v1alpha1.VolumesCopy {
		return &spec.Error{
			Field:   root + ".copy.volumeAction",
			Problem: "is for volumes: Copy",
			Hint:    "set " + root + ".copy.volumes: Copy, or leave it out",
		}
	}
	return nil
}

func (s *Spec) validateRedirect() error {
	r := s.Redirect
	if len(r.Names) > 0 && r.Provider == nil {
		return &spec.Error{
			Field: root + ".redirect.provider", Problem: "is empty, and there are names", Hint: "set rfc2136, route53 or manual",
		}
	}
	if r.Provider == nil {
		return nil
	}
	for i, n := range r.Names {
		field := fmt.Sprintf("%s.redirect.names[%d]", root, i)
		if problems := hostname(strings.TrimSuffix(n.Name, ".")); len(problems) > 0 {
			return &spec.Error{Field: field + ".name", Problem: fmt.Sprintf("%q is no host name", n.Name), Hint: "write a name in full"}
		}
	}
	return nil
}
