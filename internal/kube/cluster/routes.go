package cluster

import (
	"context"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Route is an object by which an ingress controller or gateway leads requests to a Service.
type Route struct {
	Service types.NamespacedName
	// By names the object, Class the IngressClass it asks for.
	By, Class string
}

// routeKind is one of the resources in which routes are written down, beside Ingresses.
type routeKind struct{ group, version, resource, kind string }

func routeKinds() []routeKind {
	const traefik, gateways = "traefik.io", "gateway.networking.k8s.io"
	return []routeKind{
		{traefik, "v1alpha1", "ingressroutes", "IngressRoute"},
		{traefik, "v1alpha1", "ingressroutetcps", "IngressRouteTCP"},
		{traefik, "v1alpha1", "traefikservices", "TraefikService"},
		{gateways, "v1", "httproutes", "HTTPRoute"},
		{gateways, "v1", "grpcroutes", "GRPCRoute"},
	}
}

// RouteRights are what Routes needs.
func RouteRights() []Right {
	all := Grant("networking.k8s.io", "ingresses", "", "list")
	for _, k := range routeKinds() {
		all = append(all, Grant(k.group, k.resource, "", "list")...)
	}
	return all
}

// Routes looks which Services ingress controllers and gateways lead to, and adds that to what References has found. Where there is no such
// resource, that the user may not list it says nothing.
func (c *Cluster) Routes(ctx context.Context, found *Inspection) error {
	err := eachPage(ctx, c, &networkingv1.IngressList{}, pageSize, func(o client.Object) {
		if in, ok := o.(*networkingv1.Ingress); ok {
			found.ingress(in)
		}
	})
	if err := found.unread("ingresses", err); err != nil {
		return err
	}
	for _, k := range routeKinds() {
		body, err := c.GetRaw(ctx, fmt.Sprintf("/apis/%s/%s/%s", k.group, k.version, k.resource))
		if err == nil {
			err = found.TakeRoutes(k.kind, body)
		}
		if err := found.unread(k.resource, err); err != nil {
			return err
		}
		if !found.defined[k.resource+"."+k.group] && !found.Unread["customresourcedefinitions"] {
			delete(found.Unread, k.resource)
		}
	}
	return nil
}

// TakeRoutes looks at a list of objects of a kind, as JSON.
func (i *Inspection) TakeRoutes(kind string, body []byte) error {
	var all struct {
		Items []map[string]any `json:"items"`
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return fmt.Errorf("reading objects of kind %s: %w", kind, err)
	}
	for _, item := range all.Items {
		o := unstructured.Unstructured{Object: item}
		for _, svc := range backends(o.Object["spec"], o.GetNamespace()) {
			i.route(Route{Service: svc, By: kind + " " + o.GetNamespace() + "/" + o.GetName()})
		}
	}
	return nil
}

// ingress looks at one of the built-in kind.
func (i *Inspection) ingress(o *networkingv1.Ingress) {
	class := o.Annotations["kubernetes.io/ingress.class"]
	if o.Spec.IngressClassName != nil {
		class = *o.Spec.IngressClassName
	}
	take := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil {
			i.route(Route{
				Service: types.NamespacedName{Namespace: o.Namespace, Name: b.Service.Name},
				By:      "Ingress " + o.Namespace + "/" + o.Name, Class: class,
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

func (i *Inspection) route(r Route) {
	if !slices.Contains(i.Routes, r) {
		i.Routes = append(i.Routes, r)
	}
}

// backends are the Services that a route leads to, wherever in it they are named: Traefik and the Gateway API nest them in several ways, and
// use the same few words.
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

// reference is the Service that is named; nothing, if that is something else.
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
