package objectsync

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	gatewayGroup = "gateway.networking.k8s.io"
	certGroup    = "cert-manager.io"
)

// swapHosts takes names for one another wherever an object says which names it answers to.
func swapHosts(k ResourceKind, o *unstructured.Unstructured, swaps []v1alpha1.Swap) {
	if len(swaps) == 0 {
		return
	}
	swap := func(name string) string {
		for _, s := range swaps {
			if name == s.From {
				return s.To
			}
		}
		return name
	}
	field := func(m map[string]any, name string) {
		if v, ok := m[name].(string); ok {
			m[name] = swap(v)
		}
	}
	list := func(m map[string]any, name string) {
		for i, v := range asSlice(m[name]) {
			if s, ok := v.(string); ok {
				m[name].([]any)[i] = swap(s)
			}
		}
	}
	within := inside(o.Object, "spec")
	switch {
	case k.is("networking.k8s.io", "Ingress"):
		for _, rule := range asSlice(within["rules"]) {
			field(asMap(rule), "host")
		}
		for _, tls := range asSlice(within["tls"]) {
			list(asMap(tls), "hosts")
		}
	case k.is(gatewayGroup, "Gateway"):
		for _, l := range asSlice(within["listeners"]) {
			field(asMap(l), "hostname")
		}
	case k.Group == gatewayGroup:
		list(within, "hostnames")
	case k.is(certGroup, "Certificate"):
		list(within, "dnsNames")
		field(within, "commonName")
	}
	swapAnnotatedHosts(o, swap)
}

func swapAnnotatedHosts(o *unstructured.Unstructured, swap func(string) string) {
	annotations := o.GetAnnotations()
	for _, name := range []string{"external-dns.alpha.kubernetes.io/hostname", "external-dns.alpha.kubernetes.io/internal-hostname"} {
		value, ok := annotations[name]
		if !ok {
			continue
		}
		names := strings.Split(value, ",")
		for i := range names {
			names[i] = swap(strings.TrimSpace(names[i]))
		}
		setAnnotation(o, name, strings.Join(names, ","))
	}
}

// addAlias adds the alias wherever an object answers to the name. Listeners of a Gateway have names
// of their own, so a route that names its listener answers to the alias only through listeners
// without a hostname.
func addAlias(k ResourceKind, o *unstructured.Unstructured, h v1alpha1.HostAlias) {
	within := inside(o.Object, "spec")
	switch {
	case k.is("networking.k8s.io", "Ingress"):
		beside(within, "rules", "host", h, nil)
		for _, tls := range asSlice(within["tls"]) {
			addName(asMap(tls), "hosts", h)
		}
	case k.is(gatewayGroup, "Gateway"):
		rename := func(l map[string]any) {
			if name, ok := l["name"].(string); ok {
				l["name"] = name + "-alias"
			}
		}
		beside(within, "listeners", "hostname", h, rename)
	case k.Group == gatewayGroup:
		addName(within, "hostnames", h)
	}
}

// beside adds an item for the alias after each that is for the name, if there is none yet.
func beside(o map[string]any, list, field string, h v1alpha1.HostAlias, change func(map[string]any)) {
	items := asSlice(o[list])
	if len(items) == 0 || slices.ContainsFunc(items, func(i any) bool { return asMap(i)[field] == h.Alias }) {
		return
	}
	var all []any
	for _, item := range items {
		all = append(all, item)
		if m := asMap(item); m[field] == h.Name {
			more := runtime.DeepCopyJSON(m)
			more[field] = h.Alias
			if change != nil {
				change(more)
			}
			all = append(all, more)
		}
	}
	o[list] = all
}

func addName(o map[string]any, list string, h v1alpha1.HostAlias) {
	names := asSlice(o[list])
	if slices.Contains(names, any(h.Name)) && !slices.Contains(names, any(h.Alias)) {
		o[list] = append(names, h.Alias)
	}
}
