package dnscutover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

// Problem is why a name cannot be led to the target.
type Problem struct {
	Name    string
	Problem string
	Hint    string
	// Warning is true for names that no one outside can know: nothing is lost if they stay.
	Warning bool
}

func (p Problem) String() string { return p.Name + ": " + p.Problem }

const hintWrite = "write the name under spec.mirror.redirect.names, with from and to as they are in DNS"

// Pair joins names of source and target: those of the spec, completed, or all of the source; two
// for a dual-stack name. A name with a problem is left out.
func Pair(source, target []FoundName, spec v1alpha1.RedirectSpec) ([]v1alpha1.RedirectName, []Problem) {
	p := pairing{source: byName(source), target: byName(target), spec: spec}
	if len(spec.Names) == 0 {
		for _, f := range source {
			if !dnsrecords.Nameable(f.Name) {
				p.warn(f.Name, "is not a name in full, so it stays as it is ("+strings.Join(f.Objects(), ", ")+")", "")
				continue
			}
			p.pair(v1alpha1.RedirectName{Name: f.Name})
		}
		return p.names, p.problems
	}
	for _, n := range spec.Names {
		n.Name = strings.ToLower(strings.TrimSuffix(n.Name, "."))
		if !dnsrecords.Nameable(n.Name) {
			p.problem(n.Name, "is not a name in full", "write it with its domain, such as shop.example.com")
			continue
		}
		p.pair(n)
	}
	return p.names, p.problems
}

// Renew gives recorded pairs the present probes of the spec. Where they lead stays.
func Renew(names []v1alpha1.RedirectName, spec v1alpha1.RedirectSpec) []v1alpha1.RedirectName {
	out := slices.Clone(names)
	for i := range out {
		mode := v1alpha1.ProbeHTTP
		if out[i].Probe != nil {
			mode = out[i].Probe.Mode
		}
		var own *v1alpha1.RedirectProbe
		for _, n := range spec.Names {
			if strings.EqualFold(strings.TrimSuffix(n.Name, "."), out[i].Name) {
				own = n.Probe
			}
		}
		was := out[i].Probe
		out[i].Probe = probing(out[i].Name, own, spec.Probe, mode)
		if was != nil && out[i].Probe.Mode == v1alpha1.ProbeTCP && out[i].Probe.Port == 0 {
			out[i].Probe.Port = was.Port
		}
	}
	return out
}

type pairing struct {
	source, target map[string]FoundName
	spec           v1alpha1.RedirectSpec
	names          []v1alpha1.RedirectName
	problems       []Problem
}

func byName(all []FoundName) map[string]FoundName {
	out := map[string]FoundName{}
	for _, f := range all {
		out[f.Name] = f
	}
	return out
}

func (p *pairing) problem(name, problem, hint string) {
	p.problems = append(p.problems, Problem{Name: name, Problem: problem, Hint: hint})
}

func (p *pairing) warn(name, problem, hint string) {
	p.problems = append(p.problems, Problem{Name: name, Problem: problem, Hint: hint, Warning: true})
}

func (p *pairing) pair(n v1alpha1.RedirectName) {
	before := len(p.problems)
	from := p.side(n.Name, "source", n.From, p.spec.From, p.source)
	to := p.side(n.Name, "target", n.To, p.spec.To, p.target)
	n.Probe = p.probe(n)
	if r := p.provider(); r != nil && !dns.IsSubDomain(dns.CanonicalName(r.Zone), dns.CanonicalName(n.Name)) {
		p.problem(n.Name, "is not in the zone "+r.Zone+" of the provider",
			"list those names that are to be led under spec.mirror.redirect.names, and lead others by another migration")
	}
	if p.blocked(before) {
		return
	}
	types := []v1alpha1.RecordType{n.Type}
	if n.Type == "" {
		types = typesOf(from)
	}
	if len(types) > 1 && slices.Contains(types, v1alpha1.RecordCNAME) {
		p.problem(n.Name, fmt.Sprintf("has both addresses and a name at the source (%s), and a record has but one of them",
			strings.Join(from, ", ")), hintWrite)
		return
	}
	var out []v1alpha1.RedirectName
	for _, typ := range types {
		one := n
		one.Type, one.From, one.To = typ, only(from, typ), only(to, typ)
		if !p.whole(one, from, to) {
			return
		}
		out = append(out, one)
	}
	p.names = append(p.names, out...)
}

func (p *pairing) probe(n v1alpha1.RedirectName) *v1alpha1.RedirectProbe {
	mode, port := p.spoken(n.Name)
	out := probing(n.Name, n.Probe, p.spec.Probe, mode)
	if out.Mode == v1alpha1.ProbeTCP && out.Port == 0 {
		out.Port = port
	}
	switch {
	case out.Mode == v1alpha1.ProbeTCP && out.Port == 0:
		p.problem(n.Name, "its probe is a TCP connection and has no port", "write spec.mirror.redirect.probe.port")
	case wildcard(n.Name):
		p.warn(n.Name, "stands for any name, so it cannot be asked for before it leads to the target",
			"list the names that matter as well, or try some by hand")
	case mode == v1alpha1.ProbeOff && out.Mode == mode:
		p.warn(n.Name, "belongs to a Service without TCP, so it is not asked for before it leads to the target", "try it by hand")
	}
	return out
}

func (p *pairing) blocked(since int) bool {
	return slices.ContainsFunc(p.problems[since:], func(p Problem) bool { return !p.Warning })
}

// provider serves a single zone; nil if names are kept elsewhere.
func (p *pairing) provider() *v1alpha1.RFC2136Provider {
	if p.spec.Provider == nil {
		return nil
	}
	return p.spec.Provider.RFC2136
}

// spoken is the protocol of a name's clients, by its objects at the source or else the target.
func (p *pairing) spoken(name string) (mode v1alpha1.ProbeMode, port int32) {
	f, ok := p.source[name]
	if !ok {
		f = p.target[name]
	}
	switch {
	case f.TLS:
		return v1alpha1.ProbeHTTPS, 0
	case f.Port < 0:
		return v1alpha1.ProbeOff, 0
	case f.Port > 0:
		return v1alpha1.ProbeTCP, f.Port
	}
	return v1alpha1.ProbeHTTP, 0
}

func (p *pairing) whole(n v1alpha1.RedirectName, from, to []string) bool {
	record := dnsrecords.Title(n.Name, n.Type)
	switch {
	case len(n.From) == 0:
		p.problem(n.Name, fmt.Sprintf("%s has nothing at the source, which has %s", record, strings.Join(from, ", ")), hintWrite)
	case len(n.To) == 0:
		p.problem(n.Name, fmt.Sprintf("%s leads to %s at the source, and has nothing at the target, which has %s",
			record, strings.Join(n.From, ", "), strings.Join(to, ", ")), hintWrite)
	case n.Type == v1alpha1.RecordCNAME && (len(n.From) > 1 || len(n.To) > 1):
		p.problem(n.Name, fmt.Sprintf("%s has more than one value: %s at the source and %s at the target",
			record, strings.Join(n.From, ", "), strings.Join(n.To, ", ")), hintWrite)
	case slices.Equal(n.From, n.To):
		p.problem(n.Name, fmt.Sprintf("leads to %s on both sides", strings.Join(n.From, ", ")),
			"give the target a load balancer of its own, or "+hintWrite)
	default:
		return true
	}
	return false
}

// side is where a name leads: its own setting, the common one, or what was found.
func (p *pairing) side(name, side string, own, all []string, found map[string]FoundName) []string {
	switch {
	case len(own) > 0:
		return tidy(own)
	case len(all) > 0:
		return tidy(all)
	}
	f, ok := found[name]
	if !ok {
		p.problem(name, "no Ingress, route, gateway or Service of the "+side+" asks for it", hintWrite)
		return nil
	}
	addresses, differ := f.Addresses()
	switch {
	case differ != "":
		p.problem(name, "leads to different places at the "+side+": "+differ, hintWrite)
	case len(addresses) == 0:
		p.problem(name, fmt.Sprintf("has no address at the %s yet: the status of %s has none", side, strings.Join(f.Objects(), ", ")),
			"wait until its controller has written one, or "+hintWrite)
	}
	return addresses
}

func probing(name string, own *v1alpha1.RedirectProbe, all v1alpha1.RedirectProbe, mode v1alpha1.ProbeMode) *v1alpha1.RedirectProbe {
	out := all.DeepCopy()
	if own != nil {
		out = own.DeepCopy()
	}
	switch {
	case wildcard(name):
		out.Mode = v1alpha1.ProbeOff
	case out.Mode == "":
		out.Mode = mode
	}
	if out.Path == "" {
		out.Path = "/"
	}
	return out
}

func typesOf(values []string) []v1alpha1.RecordType {
	var all []v1alpha1.RecordType
	for _, typ := range []v1alpha1.RecordType{v1alpha1.RecordA, v1alpha1.RecordAAAA, v1alpha1.RecordCNAME} {
		if typ == v1alpha1.RecordAAAA && slices.ContainsFunc(values, dnsrecords.IsAlias) { // whether there is one more is not known
			continue
		}
		if len(only(values, typ)) > 0 {
			all = append(all, typ)
		}
	}
	return all
}

func only(values []string, typ v1alpha1.RecordType) []string {
	var out []string
	for _, v := range values {
		is := v1alpha1.RecordCNAME
		if dnsrecords.IsAlias(v) && typ != v1alpha1.RecordCNAME {
			is = typ
		}
		if a, err := netip.ParseAddr(v); err == nil {
			is = v1alpha1.RecordAAAA
			if a.Is4() {
				is = v1alpha1.RecordA
			}
		}
		if is == typ {
			out = append(out, v)
		}
	}
	return out
}
