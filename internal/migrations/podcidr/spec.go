// Package podcidr moves the pods of a live cluster to another range: pools moves those of Calico's pools, noderanges those of
// Nodes that carry their range.
package podcidr

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec"
)

// Spec is the job, read, defaulted and validated.
type Spec = podmove.Spec

const root = podmove.Field

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	spec.Default(&m.Spec)
	s := m.Spec.PodCIDR
	if s == nil {
		return
	}
	s.Prepare.Mode = cmp.Or(s.Prepare.Mode, v1alpha1.PrepareScale)
	s.Canary.Mode = cmp.Or(s.Canary.Mode, v1alpha1.PodCanaryRun)
	s.Tunnels.Mode = cmp.Or(s.Tunnels.Mode, v1alpha1.TunnelsHold)
	s.Roll.BarePods = cmp.Or(s.Roll.BarePods, v1alpha1.BarePodsReport)
	s.Roll.Parallel = cmp.Or(s.Roll.Parallel, 2)
	s.Nodes.Parallel = cmp.Or(s.Nodes.Parallel, 1)
	if s.Nodes.GateWait == nil {
		s.Nodes.GateWait = &metav1.Duration{Duration: time.Hour}
	}
	if s.Roll.Timeout == nil {
		s.Roll.Timeout = &metav1.Duration{Duration: 10 * time.Minute}
	}
	if s.Roll.JobWait == nil {
		s.Roll.JobWait = &metav1.Duration{Duration: time.Hour}
	}
}

// Validate turns a defaulted Migration into a Spec. It fails with a *spec.Error.
func Validate(m *v1alpha1.Migration) (Spec, error) {
	j := m.Spec.PodCIDR
	if j == nil {
		return Spec{}, &spec.Error{Field: "spec", Problem: "names no job", Hint: "set " + root + ".to"}
	}
	if problems := validation.IsDNS1123Label(m.Name); len(problems) > 0 {
		return Spec{}, &spec.Error{
			Field: "metadata.name", Problem: fmt.Sprintf("%q cannot be used: %s", m.Name, problems[0]),
			Hint: "name the Migration with lower-case letters, digits and dashes, at most 63",
		}
	}
	if err := spec.Validate(&m.Spec, PhaseNames()); err != nil {
		return Spec{}, err
	}
	s := Spec{
		Name:      m.Name,
		BlockSize: j.BlockSize,
		Prepare:   j.Prepare.Mode,
		Canary:    j.Canary,
		Tunnels:   j.Tunnels.Mode,
		Roll:      j.Roll,
		Nodes:     j.Nodes,
		Common:    *m.Spec.DeepCopy(),
	}
	if err := validateChoices(&s); err != nil {
		return Spec{}, err
	}
	var err error
	for _, f := range []struct {
		into  *[]netip.Prefix
		field string
		texts []string
	}{{&s.To, "to", j.To}, {&s.From, "from", j.From}, {&s.Networks, "networks", j.Networks}} {
		if *f.into, err = ranges(root+"."+f.field, f.texts); err != nil {
			return Spec{}, err
		}
	}
	if s.Scale, err = names(root+".prepare.deployments", j.Prepare.Deployments); err != nil {
		return Spec{}, err
	}
	if s.Agents, err = names(root+".nodes.agents", j.Nodes.Agents); err != nil {
		return Spec{}, err
	}
	return s, validateRanges(&s)
}

func validateChoices(s *Spec) error {
	switch {
	case s.Prepare != v1alpha1.PrepareScale && s.Prepare != v1alpha1.PrepareDisabled:
		return &spec.Error{Field: root + ".prepare.mode", Problem: fmt.Sprintf("%q is not known", s.Prepare), Hint: "use Scale or Disabled"}
	case s.Canary.Mode != v1alpha1.PodCanaryRun && s.Canary.Mode != v1alpha1.PodCanaryDisabled:
		return &spec.Error{
			Field:   root + ".canary.mode",
			Problem: fmt.Sprintf("%q is not known", s.Canary.Mode),
			Hint:    "use Run or Disabled",
		}
	case s.Tunnels != v1alpha1.TunnelsHold && s.Tunnels != v1alpha1.TunnelsLeave:
		return &spec.Error{Field: root + ".tunnels.mode", Problem: fmt.Sprintf("%q is not known", s.Tunnels), Hint: "use Hold or Leave"}
	case s.Roll.BarePods != v1alpha1.BarePodsReport && s.Roll.BarePods != v1alpha1.BarePodsEvict:
		return &spec.Error{
			Field:   root + ".roll.barePods",
			Problem: fmt.Sprintf("%q is not known", s.Roll.BarePods),
			Hint:    "use Report or Evict",
		}
	}
	return validateNumbers(s)
}

func validateNumbers(s *Spec) error {
	switch {
	case s.Roll.Parallel < 1 || s.Roll.Parallel > 100:
		return &spec.Error{Field: root + ".roll.parallel", Problem: fmt.Sprintf("is %d", s.Roll.Parallel), Hint: "use 1 to 100"}
	case s.Nodes.Parallel < 1 || s.Nodes.Parallel > 100:
		return &spec.Error{Field: root + ".nodes.parallel", Problem: fmt.Sprintf("is %d", s.Nodes.Parallel), Hint: "use 1 to 100"}
	case s.Nodes.GateWait.Duration <= 0:
		return &spec.Error{Field: root + ".nodes.gateWait", Problem: "is not positive", Hint: "leave it out for 1h"}
	case s.Roll.Timeout.Duration <= 0:
		return &spec.Error{Field: root + ".roll.timeout", Problem: "is not positive", Hint: "leave it out for 10m"}
	case s.Roll.JobWait.Duration <= 0:
		return &spec.Error{Field: root + ".roll.jobWait", Problem: "is not positive", Hint: "leave it out for 1h"}
	case s.BlockSize != 0 && (s.BlockSize < 20 || s.BlockSize > 32):
		return &spec.Error{
			Field:   root + ".blockSize",
			Problem: fmt.Sprintf("is %d", s.BlockSize),
			Hint:    "use 20 to 32; Calico's own choice is 26",
		}
	}
	return nil
}

func ranges(field string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for i, text := range texts {
		p, err := cidr.Parse(text)
		if err != nil {
			return nil, &spec.Error{
				Field:   fmt.Sprintf("%s[%d]", field, i),
				Problem: err.Error(),
				Hint:    "write a range such as 10.245.0.0/16",
			}
		}
		all = append(all, p)
	}
	return all, nil
}

func names(field string, texts []string) ([]types.NamespacedName, error) {
	var all []types.NamespacedName
	for i, text := range texts {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, &spec.Error{
				Field: fmt.Sprintf("%s[%d]", field, i), Problem: fmt.Sprintf("%q names no Deployment", text),
				Hint: "write namespace/name, such as kube-system/coredns",
			}
		}
		all = append(all, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return all, nil
}

// validateRanges refuses ranges that contradict each other.
func validateRanges(s *Spec) error {
	const to, from = root + ".to", root + ".from"
	if len(s.To) == 0 {
		return &spec.Error{Field: to, Problem: "is empty", Hint: "name the target range, such as 10.245.0.0/16"}
	}
	if len(s.From) > 0 && len(s.From) != len(s.To) {
		return &spec.Error{
			Field: to, Problem: fmt.Sprintf("has %d ranges for %d in from", len(s.To), len(s.From)),
			Hint: "name one target for each range in from, in the same order",
		}
	}
	for i, p := range s.To {
		if !p.Addr().Is4() {
			return &spec.Error{
				Field: fmt.Sprintf("%s[%d]", to, i), Problem: p.String() + " is not an IPv4 range", Hint: "IPv6 pods cannot be moved yet",
			}
		}
		for k, o := range s.To[:i] {
			if o.Overlaps(p) {
				return &spec.Error{
					Field: fmt.Sprintf("%s[%d]", to, i), Problem: fmt.Sprintf("%s overlaps %s in %s[%d]", p, o, to, k),
					Hint: "choose targets that have no address in common",
				}
			}
		}
		for _, o := range s.From {
			if o.Overlaps(p) {
				return &spec.Error{
					Field: fmt.Sprintf("%s[%d]", to, i), Problem: fmt.Sprintf("%s overlaps %s in %s", p, o, from),
					Hint: "choose a target outside the ranges that are to be emptied",
				}
			}
		}
		if s.BlockSize != 0 && s.BlockSize < p.Bits() {
			return &spec.Error{
				Field: root + ".blockSize", Problem: fmt.Sprintf("a /%d is larger than the target %s", s.BlockSize, p),
				Hint: "choose smaller blocks or a wider target",
			}
		}
	}
	return nil
}
