package dnscutover

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type gateway struct {
	addresses []string
	listeners []listener
}

// listener with an empty host takes any name.
type listener struct {
	name, host string
	tls        bool
}

func readGateway(o *unstructured.Unstructured) gateway {
	g := gateway{addresses: meant(o, reached(o))}
	for _, l := range items(o.Object, "spec", "listeners") {
		g.listeners = append(g.listeners, listener{
			name: text(l, "name"), host: text(l, "hostname"),
			tls: slices.Contains([]string{"HTTPS", "TLS"}, text(l, "protocol")),
		})
	}
	return g
}

// reached are the addresses of a Gateway, of the types IPAddress and Hostname.
func reached(o *unstructured.Unstructured) []string {
	var all []string
	for _, a := range items(o.Object, "status", "addresses") {
		if slices.Contains([]string{"", "IPAddress", "Hostname"}, text(a, "type")) && text(a, "value") != "" {
			all = append(all, text(a, "value"))
		}
	}
	return all
}

func (d *discovery) gateway(o *unstructured.Unstructured) {
	g := d.gateways[o.GetNamespace()+"/"+o.GetName()]
	for _, l := range g.listeners {
		d.add(o, l.host, l.tls, g.addresses)
	}
	for _, host := range annotated(o) {
		d.add(o, host, g.tls(host, ""), g.addresses)
	}
}

func (d *discovery) route(o *unstructured.Unstructured) {
	names := slices.Concat(texts(o.Object, "spec", "hostnames"), annotated(o))
	for _, host := range names {
		d.add(o, host, o.GetKind() == "TLSRoute", nil)
		for _, p := range items(o.Object, "spec", "parentRefs") {
			if g, ok := d.gateways[parent(o, p)]; ok {
				d.add(o, host, g.tls(host, text(p, "sectionName")), g.addresses)
			}
		}
	}
}

func parent(o *unstructured.Unstructured, ref map[string]any) string {
	if kind := text(ref, "kind"); kind != "" && kind != "Gateway" {
		return ""
	}
	if g, found, _ := unstructured.NestedString(ref, "group"); found && g != gatewayGroup {
		return ""
	}
	namespace := text(ref, "namespace")
	if namespace == "" {
		namespace = o.GetNamespace()
	}
	return namespace + "/" + text(ref, "name")
}

// tls reports whether a listener of a name has certificates; its * is any number of labels.
func (g gateway) tls(host, section string) bool {
	return slices.ContainsFunc(g.listeners, func(l listener) bool {
		serves := l.host == "" || strings.EqualFold(l.host, host) ||
			wildcard(l.host) && strings.HasSuffix(strings.ToLower(host), strings.ToLower(l.host[1:]))
		return l.tls && serves && (section == "" || section == l.name)
	})
}
