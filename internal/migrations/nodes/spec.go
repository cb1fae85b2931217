// Package nodes moves the nodes of a live cluster to another network. plan.go lists the phases in order.
package nodes

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
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
	Terminate    v1alpha1.TerminateSpec
	Records      []v1alpha1.RecordSpec
	// ControlPlane is nil if it stays.
	ControlPlane *v1alpha1.ControlPlaneSpec
	GateWait     time.Duration
	// Common is what all kinds of migrations have.
	Common v1alpha1.MigrationSpec
}

const root = "spec.nodes"

// Defaults.
const (
	defaultGateWait     = time.Hour
	defaultSettle       = 30 * time.Second
	defaultDrainTimeout = 10 * time.Minute
	defaultJobWait      = time.Hour
	defaultCall         = 30 * time.Minute
	maxCall             = 6 * time.Hour
)

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	spec.Default(&m.Spec)
	s := m.Spec.Nodes
	if s == nil {
		return
	}
	s.Canary.Mode = cmp.Or(s.Canary.Mode, v1alpha1.PodCanaryRun)
	s.Join.Room = cmp.Or(s.Join.Room, v1alpha1.RoomRequired)
	s.Ingress.Mode = cmp.Or(s.Ingress.Mode, v1alpha1.IngressSwitch)
	s.Drain.BarePods = cmp.Or(s.Drain.BarePods, v1alpha1.BarePodsReport)
	s.Terminate.When = cmp.Or(s.Terminate.When, v1alpha1.TerminateEach)
	if s.Drain.Parallel == nil {
		s.Drain.Parallel = ptr.To(intstr.FromInt32(1))
	}
	for _, d := range []struct {
		field     **metav1.Duration
		otherwise time.Duration
	}{
		{&s.GateWait, defaultGateWait},
		{&s.Ingress.Settle, defaultSettle},
		{&s.Drain.Timeout, defaultDrainTimeout},
		{&s.Drain.JobWait, defaultJobWait},
	} {
		if *d.field == nil {
			*d.field = &metav1.Duration{Duration: d.otherwise}
		}
	}
	actions := []*v1alpha1.Action{s.Join.Provision, s.Terminate.Action}
	if c := s.ControlPlane; c != nil {
		actions = append(actions, c.Provision, c.Retire, c.Terminate)
		c.Mode = cmp.Or(c.Mode, v1alpha1.ControlPlaneAddFirst)
		if c.Settle == nil {
			c.Settle = &metav1.Duration{Duration: defaultSettle}
		}
		defaultRecords(c.Records)
	}
	defaultRecords(s.Records)
	for _, a := range actions {
		if a != nil && a.Timeout == nil {
			a.Timeout = &metav1.Duration{Duration: defaultCall}
		}
	}
}

func defaultRecords(all []v1alpha1.RecordSpec) {
	for i := range all {
		dnsrecords.Default(&all[i])
	}
}

// Validate turns a defaulted Migration into a Spec. It fails with a *spec.Error.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	j := m.Spec.Nodes
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names no job", Hint: "set " + root + ".old and " + root + ".new"}
	}
	if err := spec.Validate(&m.Spec, PhaseNames()); err != nil {
		return Spec{}, err
	}
	s := Spec{
		Name: m.Name, Join: j.Join, Canary: j.Canary, Ingress: j.Ingress, Drain: j.Drain, Terminate: j.Terminate,
		Records: j.Records, ControlPlane: j.ControlPlane, GateWait: j.GateWait.Duration, Common: *m.Spec.DeepCopy(),
	}
	var err error
	if s.Old, err = newSet(root+".old", &j.Old); err != nil {
		return Spec{}, err
	}
	if s.New, err = newSet(root+".new", &j.New); err != nil {
		return Spec{}, err
	}
	for _, f := range []struct {
		into  *[]types.NamespacedName
		field string
		texts []string
	}{
		{&s.Services, "ingress.services", j.Ingress.Services},
		{&s.Force, "drain.force", j.Drain.Force},
		{&s.First, "drain.first", j.Drain.First},
	} {
		if *f.into, err = names(root+"."+f.field, f.texts); err != nil {
			return Spec{}, err
		}
	}
	return s, s.validate()
}

func (s *Spec) validate() error {
	for _, check := range []func() error{s.validateSets, s.validateChoices, s.validateTimes, s.validateActions, s.validateTargets, s.validateNames, s.validateControlPlane} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// validateSets refuses networks that cannot be told apart.
func (s *Spec) validateSets() error {
	for i, n := range s.New.CIDRs {
		for _, o := range s.Old.CIDRs {
			if n.Overlaps(o) {
				return &spec.Error{
					Field: fmt.Sprintf("%s.new.cidrs[%d]", root, i), Problem: fmt.Sprintf("%s overlaps %s in %s.old.cidrs", n, o, root),
					Hint: "name ranges that have no address in common, or choose the nodes by selector or providerIDs",
				}
			}
		}
	}
	for _, id := range s.New.providerIDs {
		if slices.Contains(s.Old.providerIDs, id) {
			return &spec.Error{
				Field:   root + ".new.providerIDs",
				Problem: id + " is in " + root + ".old.providerIDs as well",
				Hint:    "name it in one of the two",
			}
		}
	}
	return nil
}

func (s *Spec) validateChoices() error {
	for _, c := range []struct {
		field, value string
		allowed      []string
	}{
		{"canary.mode", string(s.Canary.Mode), []string{string(v1alpha1.PodCanaryRun), string(v1alpha1.PodCanaryDisabled)}},
		{"join.room", string(s.Join.Room), []string{string(v1alpha1.RoomRequired), string(v1alpha1.RoomPartial)}},
		{"ingress.mode", string(s.Ingress.Mode), []string{string(v1alpha1.IngressSwitch), string(v1alpha1.IngressLeave)}},
		{"drain.barePods", string(s.Drain.BarePods), []string{string(v1alpha1.BarePodsReport), string(v1alpha1.BarePodsEvict)}},
		{"terminate.when", string(s.Terminate.When), []string{string(v1alpha1.TerminateEach), string(v1alpha1.TerminateAtFinish)}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return &spec.Error{
				Field:   root + "." + c.field,
				Problem: fmt.Sprintf("%q is not known", c.value),
				Hint:    "use " + strings.Join(c.allowed, " or "),
			}
		}
	}
	if n, err := intstr.GetScaledValueFromIntOrPercent(s.Drain.Parallel, 100, true); err != nil || n < 1 || n > 100 {
		return &spec.Error{
			Field:   root + ".drain.parallel",
			Problem: fmt.Sprintf("is %s", s.Drain.Parallel),
			Hint:    "use a number from 1 to 100, or 1% to 100%",
		}
	}
	return nil
}

func (s *Spec) validateTimes() error {
	for _, d := range []struct {
		field string
		value time.Duration
		zero  bool
		hint  string
	}{
		{"gateWait", s.GateWait, false, "leave it out for 1h"},
		{"ingress.settle", s.Ingress.Settle.Duration, true, "leave it out for 30s"},
		{"drain.timeout", s.Drain.Timeout.Duration, false, "leave it out for 10m"},
		{"drain.jobWait", s.Drain.JobWait.Duration, false, "leave it out for 1h"},
	} {
		if d.value < 0 || d.value == 0 && !d.zero {
			return &spec.Error{Field: root + "." + d.field, Problem: "is not positive", Hint: d.hint}
		}
	}
	return nil
}

func (s *Spec) validateActions() error {
	actions := map[string]*v1alpha1.Action{"join.provision": s.Join.Provision, "terminate.action": s.Terminate.Action}
	if c := s.ControlPlane; c != nil {
		actions["controlPlane.provision"], actions["controlPlane.retire"], actions["controlPlane.terminate"] = c.Provision, c.Retire, c.Terminate
	}
	for field, a := range actions {
		if a == nil {
			continue
		}
		if (a.Exec == nil) == (a.HTTP == nil) {
			return &spec.Error{Field: root + "." + field, Problem: "needs exactly one of exec and http", Hint: "see docs/hooks.md"}
		}
		if t := a.Timeout.Duration; t <= 0 || t > maxCall {
			return &spec.Error{
				Field:   root + "." + field + ".timeout",
				Problem: fmt.Sprintf("%s is not within 1s and %s", t, maxCall),
				Hint:    "leave it out for 30m",
			}
		}
	}
	return nil
}

func (s *Spec) validateTargets() error {
	for field, all := range map[string][]string{"ingress.targets": s.Ingress.Targets, "canary.targets": s.Canary.Targets} {
		for i, t := range all {
			if host, port, err := net.SplitHostPort(t); err != nil || host == "" || port == "" {
				return &spec.Error{
					Field: fmt.Sprintf(
						"%s.%s[%d]",
						root,
						field,
						i,
					),
					Problem: fmt.Sprintf("%q is not host:port", t),
					Hint:    "write 203.0.113.10:443",
				}
			}
		}
	}
	return nil
}

func (s *Spec) validateNames() error {
	if err := validateRecords(root+".records", s.Records); err != nil {
		return err
	}
	if s.ControlPlane == nil {
		return nil
	}
	return validateRecords(root+".controlPlane.records", s.ControlPlane.Records)
}

// validateControlPlane asks for what tells members of etcd apart, and how they are reached.
func (s *Spec) validateControlPlane() error {
	c := s.ControlPlane
	if c == nil {
		return nil
	}
	if c.Mode != v1alpha1.ControlPlaneAddFirst && c.Mode != v1alpha1.ControlPlaneReplace {
		return &spec.Error{
			Field: root + ".controlPlane.mode", Problem: fmt.Sprintf("%q is not known", c.Mode), Hint: "use AddFirst or Replace",
		}
	}
	if c.Mode == v1alpha1.ControlPlaneReplace && c.Provision == nil {
		return &spec.Error{
			Field: root + ".controlPlane.provision", Problem: "is empty, and mode is Replace",
			Hint: "name an action that answers where the control plane comes back: the others have to be told before it does",
		}
	}
	for i, e := range c.Etcd.Endpoints {
		if u, err := url.Parse(e); err != nil || u.Scheme != "https" || u.Host == "" {
			return &spec.Error{
				Field: fmt.Sprintf("%s.controlPlane.etcd.endpoints[%d]", root, i), Problem: fmt.Sprintf("%q is no client URL", e),
				Hint: "write https://10.0.0.1:2379",
			}
		}
	}
	for field, missing := range map[string]bool{
		"controlPlane.etcd.endpoints": len(c.Etcd.Endpoints) == 0, "controlPlane.etcd.caFile": c.Etcd.CAFile == "",
		"controlPlane.etcd.certFile": c.Etcd.CertFile == "", "controlPlane.etcd.keyFile": c.Etcd.KeyFile == "",
		"old.cidrs": len(s.Old.CIDRs) == 0, "new.cidrs": len(s.New.CIDRs) == 0,
	} {
		if missing {
			return &spec.Error{Field: root + "." + field, Problem: "is empty", Hint: "the control plane moves only with it"}
		}
	}
	return notNegative(root+".controlPlane.settle", c.Settle.Duration)
}

func notNegative(field string, d time.Duration) error {
	if d < 0 {
		return &spec.Error{Field: field, Problem: "is negative", Hint: "leave it out for 30s"}
	}
	return nil
}

// parallel is how many of so many nodes are emptied at once.
func (s *Spec) parallel(all int) int {
	n, _ := intstr.GetScaledValueFromIntOrPercent(s.Drain.Parallel, all, true) // validated
	return max(1, n)
}

func names(field string, texts []string) ([]types.NamespacedName, error) {
	var all []types.NamespacedName
	for i, text := range texts {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, &spec.Error{
				Field: fmt.Sprintf("%s[%d]", field, i), Problem: fmt.Sprintf("%q is no name", text),
				Hint: "write namespace/name, such as ingress-nginx/controller",
			}
		}
		all = append(all, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return all, nil
}

func parseRanges(field string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for i, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, &spec.Error{
				Field: fmt.Sprintf(
					"%s[%d]",
					field,
					i,
				),
				Problem: fmt.Sprintf("%q is not a range", text),
				Hint:    "write a range such as 10.20.0.0/16",
			}
		}
		all = append(all, p)
	}
	return all, nil
}
