package copyrules

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

const (
	gatewayGroup = "gateway.networking.k8s.io"
	certGroup    = "cert-manager.io"
)

// swapHosts takes names for one another wherever an object says which names it answers to.
func swapHosts(k objects.ResourceKind, o *unstructured.Unstructured, swaps []v1alpha1.Swap) {
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
		for i, v := range objects.Slice(m[name]) {
			if s, ok := v.(string); ok {
				m[name].([]any)[i] = swap(s)
			}
		}
	}
	within := objects.Inside(o.Object, "spec")
	switch {
	case k.Is("networking.k8s.io", "Ingress"):
		for _, rule := range objects.Slice(within["rules"]) {
			field(objects.Map(rule), "host")
		}
		for _, tls := range objects.Slice(within["tls"]) {
			list(objects.Map(tls), "hosts")
		}
	case k.Is(gatewayGroup, "Gateway"):
		for _, l := range objects.Slice(within["listeners"]) {
			field(objects.Map(l), "hostname")
		}
	case k.Group == gatewayGroup:
		list(within, "hostnames")
	case k.Is(certGroup, "Certificate"):
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
		objects.SetAnnotation(o, name, strings.Join(names, ","))
	}
}

// addAlias adds the alias wherever an object answers to the name. Listeners of a Gateway have names
// of their own, so a route that names its listener answers to the alias only through listeners
// without a hostname.
func addAlias(k objects.ResourceKind, o *unstructured.Unstructured, h v1alpha1.HostAlias) {
	within := objects.Inside(o.Object, "spec")
	switch {
	case k.Is("networking.k8s.io", "Ingress"):
		beside(within, "rules", "host", h, nil)
		for _, tls := range objects.Slice(within["tls"]) {
			addName(objects.Map(tls), "hosts", h)
		}
	case k.Is(gatewayGroup, "Gateway"):
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
	items := objects.Slice(o[list])
	if len(items) == 0 || slices.ContainsFunc(items, func(i any) bool { return objects.Map(i)[field] == h.Alias }) {
		return
	}
	var all []any
	for _, item := range items {
		all = append(all, item)
		if m := objects.Map(item); m[field] == h.Name {
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
	names := objects.Slice(o[list])
	if slices.Contains(names, any(h.Name)) && !slices.Contains(names, any(h.Alias)) {
		o[list] = append(names, h.Alias)
	}
}
