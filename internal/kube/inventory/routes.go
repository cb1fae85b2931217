package inventory

import (
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/kube/references"
)

// Route leads requests from an ingress controller or gateway to a Service.
type Route struct {
	Service types.NamespacedName
	// By is the object, as kind and name, and Class its IngressClass.
	By, Class string
}

func routeKinds() []customKind {
	const traefik = "traefik.io"
	return []customKind{
		{traefik, "v1alpha1", "ingressroutes", "IngressRoute"},
		{traefik, "v1alpha1", "ingressroutetcps", "IngressRouteTCP"},
		{traefik, "v1alpha1", "traefikservices", "TraefikService"},
		{gatewayGroup, "v1", "httproutes", "HTTPRoute"},
		{gatewayGroup, "v1", "grpcroutes", "GRPCRoute"},
	}
}

// RouteResources have routes. Names are those of Inspection.Unread.
func RouteResources() []string { return append([]string{"ingresses"}, names(routeKinds())...) }

func (i *Scan) takeRoute(o *unstructured.Unstructured) {
	for _, svc := range backends(o.Object["spec"], o.GetNamespace()) {
		i.addRoute(Route{Service: svc, By: references.Name(o.GetKind(), o)})
	}
}

func (i *Scan) takeIngress(o *networkingv1.Ingress) {
	class := o.Annotations["kubernetes.io/ingress.class"]
	if o.Spec.IngressClassName != nil {
		class = *o.Spec.IngressClassName
	}
	take := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil {
			i.addRoute(Route{
				Service: types.NamespacedName{Namespace: o.Namespace, Name: b.Service.Name},
				By:      references.Name("Ingress", o), Class: class,
			})
		}
	}
	take(o.Spec.DefaultBackend)
	for _, r := range o.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for n := range r.HTTP.Paths {
			take(&r.HTTP.Paths[n].Backend)
		}
	}
}

func (i *Scan) addRoute(r Route) {
	if !slices.Contains(i.Routes, r) {
		i.Routes = append(i.Routes, r)
	}
}

// backends looks at any depth, since Traefik and the Gateway API nest the same fields differently.
func backends(in any, namespace string) (all []types.NamespacedName) {
	switch in := in.(type) {
	case []any:
		for _, one := range in {
			all = append(all, backends(one, namespace)...)
		}
	case map[string]any:
		for word, value := range in {
			switch word {
			case "services", "backendRefs", "mirrors":
				each, _ := value.([]any)
				for _, one := range each {
					all = append(all, reference(one, namespace)...)
				}
			case "backendRef", "mirroring":
				all = append(all, reference(value, namespace)...)
			}
			all = append(all, backends(value, namespace)...)
		}
	}
	return all
}

// reference is empty for a reference to anything but a Service.
func reference(to any, namespace string) []types.NamespacedName {
	m, _ := to.(map[string]any)
	name, _ := m["name"].(string)
	kind, _ := m["kind"].(string)
	if name == "" || kind != "" && kind != "Service" {
		return nil
	}
	if other, _ := m["namespace"].(string); other != "" {
		namespace = other
	}
	return []types.NamespacedName{{Namespace: namespace, Name: name}}
}
