package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

// The ports of the Service probe.
const (
	portHTTP = "http"
	portTCP  = "echo"
	portUDP  = "echo-udp"
)

const defaultRate = 5

type target struct {
	probe.Target
	kind v1alpha1.RequestKind
	// shown is whom requests go to, as people know it.
	shown string
}

type orders struct {
	origin v1alpha1.ProbeOrigin
	domain string
	view   view
	// began is the Service probe's first address, where the stream stays while it may.
	began netip.Addr
	// server is whom to ask for names; invalid for that of resolv.conf.
	server netip.AddrPort
	// self lets what a Migration asks to probe be on the node itself, as in tests.
	self bool
	// answered, named and single say that the Service probe has answered by address, by name, and
	// the one with a single endpoint. See gate.
	answered, named             bool
	singleAnswered, singleNamed bool
}

func targets(o orders) (all []target, problems []string) {
	m := o.view.migration
	if m == nil {
		return nil, nil
	}
	taken := map[string]bool{}
	for _, t := range o.own() {
		taken[t.Name] = true
		all = append(all, t)
	}
	for _, name := range v1alpha1.OwnProbes() {
		taken[o.full(name)] = true
	}
	sum := 0.0
	for i := range m.Spec.Proof.Probes {
		p := &m.Spec.Proof.Probes[i]
		if from := cmp.Or(p.From, v1alpha1.FromBoth); from != v1alpha1.FromBoth && from != o.origin {
			continue
		}
		t, err := o.asked(p)
		if err == nil && sum+t.Rate > mostRequests {
			err = fmt.Errorf("all probes of the migration together would send more than %d requests a second from every node", mostRequests)
		}
		if err == nil && taken[o.full(p.Name)] {
			err = errors.New("the name is one of replumb's own probes'")
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("probe %s is not sent: %v", p.Name, err))
			continue
		}
		t.Name = o.full(p.Name)
		taken[t.Name] = true
		sum += t.Rate
		if !o.view.goes(t.Address) {
			all = append(all, t)
		}
	}
	return all, problems
}

// asked is a probe of the Migration. Only tests ask for the node itself.
func (o orders) asked(p *v1alpha1.ProbeSpec) (target, error) {
	t, err := wanted(p, rate(o.view.migration))
	t.Elsewhere = !o.self
	if err == nil && t.Elsewhere {
		err = apart(t.Address)
	}
	return t, err
}

// goes reports whether a user's host:port ends with the migration: in the old ranges past the point
// of no return, or on the way back in the new ranges without a Service. Failures there are
// expected.
func (s view) goes(address string) bool {
	spec := s.migration.Spec.ServiceCIDR
	host, _, err := net.SplitHostPort(address)
	a, notAddress := netip.ParseAddr(host)
	if spec == nil || err != nil || notAddress != nil {
		return false
	}
	var ranges []string
	switch {
	case s.migration.Status.PointOfNoReturnPassed:
		ranges = spec.From
	case goesBack(s.migration):
		ranges = spec.To
	}
	within := slices.ContainsFunc(ranges, func(text string) bool {
		r, err := netip.ParsePrefix(text)
		return err == nil && r.Contains(a)
	})
	return within && !slices.ContainsFunc(s.services, func(svc *corev1.Service) bool { return clusterIP(svc) == a })
}

// goesBack goes by the phase: a desired rollback may not have begun.
func goesBack(m *v1alpha1.Migration) bool {
	return m.Status.Phase == v1alpha1.PhaseRollingBack || m.Status.Phase == v1alpha1.PhaseRolledBack
}

func (o orders) full(name string) string { return strings.ToLower(string(o.origin)) + "/" + name }

func rate(m *v1alpha1.Migration) int { return cmp.Or(m.Spec.Proof.Rate, defaultRate) }

type call struct {
	name    string
	kind    v1alpha1.RequestKind
	address netip.Addr
	port    string
}

func (o orders) own() []target { return append(o.ofProbe(), o.ofSingle()...) }

func (o orders) mine(name string, kind v1alpha1.RequestKind, address string) target {
	t := target{
		Target: probe.Target{Name: o.full(name), Kind: kinds()[kind], Address: address, Rate: float64(rate(o.view.migration))},
		kind:   kind, shown: address,
	}
	if o.server.IsValid() && slices.Contains([]string{v1alpha1.ProbeDNS, v1alpha1.ProbeName, v1alpha1.ProbeSingleName}, name) {
		t.Resolver = o.server.String()
	}
	return t
}

// ofSingle is for the network of pods: on nodes without an endpoint kube-proxy treats pods and
// others differently.
func (o orders) ofSingle() []target {
	svc := o.view.single()
	if svc == nil || !o.singleAnswered || o.origin != v1alpha1.FromPod || o.view.migration.Spec.ServiceCIDR == nil {
		return nil
	}
	port := portOf(svc, portHTTP)
	if port == 0 {
		return nil
	}
	var all []target
	old, recent := addresses(o.view.migration, svc)
	for _, c := range []call{{name: v1alpha1.ProbeSingleOld, address: old}, {name: v1alpha1.ProbeSingleNew, address: recent}} {
		if c.address.IsValid() {
			all = append(all, o.mine(c.name, v1alpha1.RequestHTTP, netip.AddrPortFrom(c.address, port).String()))
		}
	}
	if o.singleNamed {
		all = append(all, o.mine(v1alpha1.ProbeSingleName, v1alpha1.RequestHTTP,
			net.JoinHostPort(nameOf(svc, o.domain), strconv.Itoa(int(port)))))
	}
	return all
}

func (o orders) ofProbe() []target {
	svc := o.view.probe()
	if svc == nil || !o.answered {
		return nil
	}
	calls := o.callsWhereItStays(svc)
	if o.view.migration.Spec.ServiceCIDR != nil {
		calls = o.callsWhereItMoves(svc)
	}
	var all []target
	add := func(name string, kind v1alpha1.RequestKind, address string) {
		all = append(all, o.mine(name, kind, address))
	}
	for _, c := range calls {
		if number := portOf(svc, c.port); c.address.IsValid() && number != 0 {
			add(c.name, c.kind, netip.AddrPortFrom(c.address, number).String())
		}
	}
	if o.named {
		name := nameOf(svc, o.domain)
		add(v1alpha1.ProbeDNS, v1alpha1.RequestDNS, name)
		if port := portOf(svc, portHTTP); port != 0 {
			add(v1alpha1.ProbeName, v1alpha1.RequestHTTP, net.JoinHostPort(name, strconv.Itoa(int(port))))
		}
	}
	return all
}

func (o orders) callsWhereItMoves(svc *corev1.Service) []call {
	old, recent := addresses(o.view.migration, svc)
	first := old
	if !first.IsValid() {
		first = recent
	}
	stays := first
	if o.began.IsValid() && (o.began == old || o.began == recent) {
		stays = o.began
	}
	return []call{
		{v1alpha1.ProbeOldAddress, v1alpha1.RequestHTTP, old, portHTTP},
		{v1alpha1.ProbeNewAddress, v1alpha1.RequestHTTP, recent, portHTTP},
		{v1alpha1.ProbeUDP, v1alpha1.RequestUDP, first, portUDP},
		{v1alpha1.ProbeStream, v1alpha1.RequestStream, stays, portTCP},
	}
}

// callsWhereItStays are probes by address in migrations of pods or nodes. Streams survive a goodbye
// of the pod; those of a node's own network end with the tunnel's address, as kube-proxy
// masquerades them, which is a documented exception (docs/design/pod-cidr.md).
func (o orders) callsWhereItStays(svc *corev1.Service) []call {
	at := clusterIP(svc)
	calls := []call{
		{v1alpha1.ProbeAddress, v1alpha1.RequestHTTP, at, portHTTP},
		{v1alpha1.ProbeUDP, v1alpha1.RequestUDP, at, portUDP},
	}
	if o.origin == v1alpha1.FromPod {
		calls = append(calls, call{v1alpha1.ProbeStream, v1alpha1.RequestStream, at, portTCP})
	}
	return calls
}

// addresses are the Service probe's that must answer now, before and after the move; either may be
// invalid:
//
//   - the old one until the point of no return, which is written before the first bridge goes; from
//     then on only the Service's present address counts, as the new one;
//   - the new one once the Service is there, and on the way back, by the bridge, until it is back;
//   - none for a Service that is being deleted or gone.
func addresses(m *v1alpha1.Migration, svc *corev1.Service) (old, recent netip.Addr) {
	at := clusterIP(svc)
	if m.Status.PointOfNoReturnPassed {
		return netip.Addr{}, at
	}
	old, moved := before(m, svc)
	switch {
	case !moved || at == old:
		return old, netip.Addr{}
	case at.IsValid():
		return old, at
	case goesBack(m):
		return old, parse(svc.Annotations[v1alpha1.AnnotationTargetIP])
	}
	return old, netip.Addr{}
}

// before is a Service's address before the migration, and whether it was ever touched.
func before(m *v1alpha1.Migration, svc *corev1.Service) (old netip.Addr, touched bool) {
	if svc.Annotations[v1alpha1.LabelMigration] != m.Name {
		return clusterIP(svc), false
	}
	old = parse(svc.Annotations[v1alpha1.AnnotationOldIP])
	if !old.IsValid() {
		return clusterIP(svc), false
	}
	return old, true
}

func (s view) probe() *corev1.Service  { return s.first(v1alpha1.RoleProbe) }
func (s view) single() *corev1.Service { return s.first(v1alpha1.RoleSingle) }

func (s view) first(role string) *corev1.Service {
	if all := s.own(role); len(all) > 0 {
		return all[0]
	}
	return nil
}

func portOf(svc *corev1.Service, name string) uint16 {
	for _, p := range svc.Spec.Ports {
		if p.Name == name {
			return uint16(p.Port) //nolint:gosec // a port
		}
	}
	return 0
}

// nameOf is absolute, so that no search list multiplies questions.
func nameOf(svc *corev1.Service, domain string) string {
	return fmt.Sprintf("%s.%s.svc.%s.", svc.Name, svc.Namespace, strings.TrimSuffix(domain, "."))
}

func kinds() map[v1alpha1.RequestKind]probe.TargetKind {
	return map[v1alpha1.RequestKind]probe.TargetKind{
		v1alpha1.RequestTCP: probe.TCP, v1alpha1.RequestHTTP: probe.HTTP, v1alpha1.RequestStream: probe.Stream,
		v1alpha1.RequestUDP: probe.UDP, v1alpha1.RequestDNS: probe.DNS,
	}
}

// mostRequests bounds a node's requests a second for a Migration's probes: its writers must not be
// able to flood others.
const mostRequests = 1000

// apart refuses the node's own addresses; those of names are checked when dialled.
func apart(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	addr, err := netip.ParseAddr(host)
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") || err == nil && probe.Near(addr) {
		return fmt.Errorf("%s is an address of the node itself, or of its link alone", host)
	}
	return nil
}

func wanted(p *v1alpha1.ProbeSpec, rate int) (target, error) {
	kind, ok := kinds()[p.Kind]
	if !ok {
		return target{}, fmt.Errorf("kind %q is not known", p.Kind)
	}
	t := target{
		Target: probe.Target{
			Name: p.Name, Kind: kind, Address: p.Address, Rate: float64(cmp.Or(p.Rate, rate)), ExpectStatus: p.ExpectStatus,
			Host: p.Host,
		},
		kind: p.Kind, shown: p.Address,
	}
	if p.Timeout != nil {
		t.Timeout = probe.Duration(p.Timeout.Duration)
	}
	if p.Kind == v1alpha1.RequestHTTP {
		if err := lead(&t.Target, p.Address); err != nil {
			return target{}, err
		}
	}
	_, err := probe.Config{Targets: []probe.Target{t.Target}}.Resolve("")
	return t, err
}

func lead(t *probe.Target, address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if port == "" || u.Hostname() == "" || u.User != nil {
		return fmt.Errorf("%q is not a URL such as http://HOST:PORT/PATH", address)
	}
	t.Address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	t.Path, t.TLS = u.RequestURI(), u.Scheme == "https"
	return nil
}
