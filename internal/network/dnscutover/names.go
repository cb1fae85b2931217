// Package dnscutover moves names in DNS between the load balancers of two clusters: it finds names,
// probes the other side before changes, leaves records of others alone, and uses dnsrecords for the
// rest.
package dnscutover

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/network/dnsrecords"
)

const (
	gatewayGroup = "gateway.networking.k8s.io"
	hostnames    = "external-dns.alpha.kubernetes.io/hostname"
	targets      = "external-dns.alpha.kubernetes.io/target"
	loadBalancer = "LoadBalancer"
)

// FoundName is a name that objects of a cluster ask for, in lower case and without a dot at the
// end.
type FoundName struct {
	Name string
	// TLS is true if one of the objects has a certificate for it.
	TLS bool
	// Port of the first Service that asks for it, as a fallback. Zero if something speaks HTTP, -1
	// without TCP.
	Port int32
	// AskedBy are the objects, in order of their titles.
	AskedBy []Requester

	// web is true if one of the objects speaks HTTP.
	web bool
}

// Requester is an object that asks for a name, and where that leads.
type Requester struct {
	// Object as kind and name, such as "Ingress shop/cart".
	Object string
	// Addresses and names of its load balancer, sorted. None, if it has none yet.
	Addresses []string
}

// Wildcard names stand for others, and cannot be asked for themselves.
func (f FoundName) Wildcard() bool { return wildcard(f.Name) }

func wildcard(name string) bool { return strings.HasPrefix(name, "*.") }

func (f FoundName) Objects() []string {
	var all []string
	for _, p := range f.AskedBy {
		all = append(all, p.Object)
	}
	return all
}

// Addresses are those of the objects that have any. They fail with a text if objects differ.
func (f FoundName) Addresses() (addresses []string, problem string) {
	var first Requester
	for _, p := range f.AskedBy {
		switch {
		case len(p.Addresses) == 0:
		case len(first.Addresses) == 0:
			first = p
		case !slices.Equal(first.Addresses, p.Addresses):
			return nil, fmt.Sprintf("%s has %s, and %s has %s",
				first.Object, strings.Join(first.Addresses, ", "), p.Object, strings.Join(p.Addresses, ", "))
		}
	}
	return first.Addresses, ""
}

// Kinds are what Discover reads, as resource.group. A cluster need not serve all of them.
func Kinds() []string {
	return []string{
		"ingresses.networking.k8s.io", "services", "gateways." + gatewayGroup, "httproutes." + gatewayGroup,
		"grpcroutes." + gatewayGroup, "tlsroutes." + gatewayGroup, "dnsendpoints.externaldns.k8s.io",
	}
}

// Discover finds the names that objects of Kinds ask for, in order.
func Discover(objects []unstructured.Unstructured) []FoundName {
	d := discovery{names: map[string]*FoundName{}, gateways: map[string]gateway{}}
	for i := range objects {
		if o := &objects[i]; group(o) == gatewayGroup && o.GetKind() == "Gateway" {
			d.gateways[o.GetNamespace()+"/"+o.GetName()] = readGateway(o)
		}
	}
	for i := range objects {
		d.read(&objects[i])
	}
	var all []FoundName
	for _, f := range d.names {
		slices.SortFunc(f.AskedBy, func(a, b Requester) int { return strings.Compare(a.Object, b.Object) })
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b FoundName) int { return strings.Compare(a.Name, b.Name) })
	return all
}

type discovery struct {
	names    map[string]*FoundName
	gateways map[string]gateway
}

func (d *discovery) read(o *unstructured.Unstructured) {
	switch group(o) + "/" + o.GetKind() {
	case "networking.k8s.io/Ingress":
		d.ingress(o)
	case "/Service":
		d.service(o)
	case gatewayGroup + "/Gateway":
		d.gateway(o)
	case gatewayGroup + "/HTTPRoute", gatewayGroup + "/GRPCRoute", gatewayGroup + "/TLSRoute":
		d.route(o)
	case "externaldns.k8s.io/DNSEndpoint":
		d.endpoint(o)
	}
}

func (d *discovery) add(o *unstructured.Unstructured, name string, tls bool, addresses []string) {
	if f := d.note(o, name, addresses); f != nil {
		f.TLS, f.Port = f.TLS || tls, 0
		f.web = true
	}
}

func (d *discovery) note(o *unstructured.Unstructured, name string, addresses []string) *FoundName {
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(name), "."))
	if name == "" {
		return nil
	}
	f := d.names[name]
	if f == nil {
		f = &FoundName{Name: name}
		d.names[name] = f
	}
	title := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
	addresses = tidy(addresses)
	i := slices.IndexFunc(f.AskedBy, func(p Requester) bool { return p.Object == title })
	if i < 0 {
		f.AskedBy = append(f.AskedBy, Requester{Object: title, Addresses: addresses})
		return f
	}
	f.AskedBy[i].Addresses = tidy(slices.Concat(f.AskedBy[i].Addresses, addresses))
	return f
}

// ingress reads rules and certificates; a host without rule has the default backend.
func (d *discovery) ingress(o *unstructured.Unstructured) {
	addresses := meant(o, balancers(o))
	var certified []string
	for _, t := range items(o.Object, "spec", "tls") {
		certified = append(certified, texts(t, "hosts")...)
	}
	for _, host := range certified {
		d.add(o, host, true, addresses)
	}
	for _, r := range items(o.Object, "spec", "rules") {
		host := text(r, "host")
		d.add(o, host, covered(host, certified), addresses)
	}
	for _, host := range annotated(o) {
		d.add(o, host, covered(host, certified), addresses)
	}
}

func (d *discovery) service(o *unstructured.Unstructured) {
	if text(o.Object, "spec", "type") != loadBalancer {
		return
	}
	for _, host := range annotated(o) {
		if f := d.note(o, host, meant(o, balancers(o))); f != nil && !f.web && f.Port == 0 {
			f.Port = firstTCP(o)
		}
	}
}

func firstTCP(o *unstructured.Unstructured) int32 {
	for _, p := range items(o.Object, "spec", "ports") {
		if protocol := text(p, "protocol"); protocol != "" && protocol != "TCP" {
			continue
		}
		switch n := p["port"].(type) { // what decodes JSON decides on the type
		case int64:
			if n > 0 && n <= math.MaxUint16 {
				return int32(n)
			}
		case float64:
			return int32(n)
		}
	}
	return -1
}

func (d *discovery) endpoint(o *unstructured.Unstructured) {
	for _, e := range items(o.Object, "spec", "endpoints") {
		if slices.Contains([]string{"A", "AAAA", "CNAME"}, text(e, "recordType")) {
			d.add(o, text(e, "dnsName"), false, texts(e, "targets"))
		}
	}
}

func balancers(o *unstructured.Unstructured) []string {
	var all []string
	for _, in := range items(o.Object, "status", "loadBalancer", "ingress") {
		for _, field := range []string{"ip", "hostname"} {
			if value := text(in, field); value != "" {
				all = append(all, value)
			}
		}
	}
	return all
}

func annotated(o *unstructured.Unstructured) []string { return split(o.GetAnnotations()[hostnames]) }

// meant are the addresses that external-dns takes, its annotation first.
func meant(o *unstructured.Unstructured, addresses []string) []string {
	if said := split(o.GetAnnotations()[targets]); len(said) > 0 {
		return said
	}
	return addresses
}

func split(list string) []string {
	var all []string
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// covered reports whether a name matches a host: * is one label (RFC 6125, section 6.4.3).
func covered(host string, names []string) bool {
	host = strings.ToLower(host)
	return slices.ContainsFunc(names, func(name string) bool {
		name = strings.ToLower(name)
		_, above, _ := strings.Cut(host, ".")
		return name == host || wildcard(name) && name[2:] == above
	})
}

func tidy(addresses []string) []string {
	var all []string
	for _, a := range addresses {
		if address, err := netip.ParseAddr(a); err == nil {
			all = append(all, address.Unmap().String())
			continue
		}
		if alias, err := dnsrecords.ParseAlias(a); err == nil {
			all = append(all, alias.String())
			continue
		}
		all = append(all, strings.ToLower(strings.TrimSuffix(a, ".")))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func group(o *unstructured.Unstructured) string { return o.GroupVersionKind().Group }

func items(o map[string]any, path ...string) []map[string]any {
	list, _, _ := unstructured.NestedFieldNoCopy(o, path...)
	raw, _ := list.([]any)
	var all []map[string]any
	for _, item := range raw {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func text(o map[string]any, path ...string) string {
	s, _, _ := unstructured.NestedString(o, path...)
	return s
}

func texts(o map[string]any, path ...string) []string {
	all, _, _ := unstructured.NestedStringSlice(o, path...)
	return all
}
