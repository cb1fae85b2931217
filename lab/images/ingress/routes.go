package main

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// backend is a port of a Service.
type backend struct {
	namespace, service string
	port               networkingv1.ServiceBackendPort
}

// rule leads the requests for some paths of a host to a backend.
type rule struct {
	path  string // a prefix has no slash at its end
	exact bool
	to    backend
}

func (r rule) matches(path string) bool {
	if r.exact {
		return path == r.path
	}
	// By elements: /a is before /a and /a/b, not before /ab.
	return path == r.path || strings.HasPrefix(path, r.path+"/")
}

// table is what all Ingresses of a class say, at one moment.
type table struct {
	// rules by host, the most specific first. A host may begin with "*."; the empty one is any.
	rules map[string][]rule
	// otherwise is where requests go that no rule matches.
	otherwise *backend
	// certificates by host, which may begin with "*.".
	certificates map[string]*tls.Certificate
}

// newTable makes the table of Ingresses. Where two say different things the older is right, as with other controllers. A
// certificate that cannot be had is left out.
func newTable(ingresses []*networkingv1.Ingress, certificate func(namespace, secret string) *tls.Certificate) *table {
	t := &table{rules: map[string][]rule{}, certificates: map[string]*tls.Certificate{}}
	ingresses = slices.Clone(ingresses)
	slices.SortFunc(ingresses, older)
	for _, i := range ingresses {
		if d := i.Spec.DefaultBackend; d != nil && d.Service != nil && t.otherwise == nil {
			t.otherwise = &backend{i.Namespace, d.Service.Name, d.Service.Port}
		}
		for _, r := range i.Spec.Rules {
			t.addRules(i.Namespace, r)
		}
		for _, entry := range i.Spec.TLS {
			t.addCertificate(entry.Hosts, certificate(i.Namespace, entry.SecretName))
		}
	}
	for _, rules := range t.rules {
		slices.SortStableFunc(rules, moreSpecific)
	}
	return t
}

func older(a, b *networkingv1.Ingress) int {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order
	}
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

// moreSpecific puts the longer path first, and of two that are the same the exact one.
// https://kubernetes.io/docs/concepts/services-networking/ingress/#multiple-matches
func moreSpecific(a, b rule) int {
	switch {
	case len(a.path) != len(b.path):
		return len(b.path) - len(a.path)
	case a.exact == b.exact:
		return 0
	case a.exact:
		return -1
	default:
		return 1
	}
}

func (t *table) addRules(namespace string, r networkingv1.IngressRule) {
	if r.HTTP == nil {
		return
	}
	host := strings.ToLower(r.Host)
	for _, p := range r.HTTP.Paths {
		if p.Backend.Service == nil {
			continue
		}
		added := rule{
			path: p.Path, exact: p.PathType != nil && *p.PathType == networkingv1.PathTypeExact,
			to: backend{namespace, p.Backend.Service.Name, p.Backend.Service.Port},
		}
		if !added.exact {
			added.path = strings.TrimSuffix(added.path, "/")
		}
		t.rules[host] = append(t.rules[host], added)
	}
}

func (t *table) addCertificate(hosts []string, c *tls.Certificate) {
	if c == nil {
		return
	}
	if len(hosts) == 0 && c.Leaf != nil {
		hosts = c.Leaf.DNSNames
	}
	for _, host := range hosts {
		if host = strings.ToLower(host); t.certificates[host] == nil {
			t.certificates[host] = c
		}
	}
}

// named is what is known of a host by its name: exactly, or by "*." in place of its first label.
func named[V any](all map[string]V, host string) (V, bool) {
	if v, ok := all[host]; ok {
		return v, true
	}
	if _, domain, ok := strings.Cut(host, "."); ok {
		v, ok := all["*."+domain]
		return v, ok
	}
	var none V
	return none, false
}

// knows tells whether a rule names the host of a request.
func (t *table) knows(host string) bool {
	host = hostOnly(host)
	if host == "" {
		return false
	}
	_, ok := named(t.rules, host)
	return ok
}

// route is where a request goes; nil if no Ingress takes it.
func (t *table) route(host, path string) *backend {
	byName, _ := named(t.rules, hostOnly(host))
	for _, rules := range [][]rule{byName, t.rules[""]} {
		if i := slices.IndexFunc(rules, func(r rule) bool { return r.matches(path) }); i >= 0 {
			return &rules[i].to
		}
	}
	return t.otherwise
}

// certificate is what a host is served with; nil, if there is none.
func (t *table) certificate(host string) *tls.Certificate {
	c, _ := named(t.certificates, hostOnly(host))
	return c
}

func hostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
