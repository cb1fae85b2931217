package inventory

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
)

// Pool is a range from which a network plugin allocates, by an Object as kind and name.
type Pool struct {
	Object string
	Range  netip.Prefix
}

// Advertiser announces routes to ClusterIPs outside the cluster. Object and By are those of a
// Replacement.
type Advertiser struct {
	Object string
	By     string
	// Ranges is empty if each Service's address is advertised by itself.
	Ranges []netip.Prefix
}

const (
	ipPool     = "IPPool"
	bgpConfig  = "BGPConfiguration"
	bgpAdvert  = "CiliumBGPAdvertisement"
	bgpPeering = "CiliumBGPPeeringPolicy"
	connector  = "Connector"
)

func advertiserKinds() []customKind {
	return []customKind{
		{cluster.CalicoGroup, "v1", "bgpconfigurations", bgpConfig},
		{ciliumGroup, "v2", "ciliumbgpadvertisements", bgpAdvert},
		{ciliumGroup, "v2alpha1", "ciliumbgppeeringpolicies", bgpPeering},
		{"tailscale.com", "v1alpha1", "connectors", connector},
	}
}

func poolKinds() []customKind {
	return []customKind{{cluster.CalicoGroup, "v1", "ippools", ipPool}}
}

func neighbourKinds() []customKind { return slices.Concat(poolKinds(), advertiserKinds()) }

// NeighbourRights are for Neighbours.
func NeighbourRights() []access.Right { return listRights(neighbourKinds()) }

// PoolResources have pools. Names are those of Inspection.Unread.
func PoolResources() []string { return names(poolKinds()) }

// AdvertiserResources show advertisers. Names are those of Inspection.Unread.
func AdvertiserResources() []string {
	return append([]string{"pods", "deployments", "statefulsets", "daemonsets", "services"}, names(advertiserKinds())...)
}

// Neighbours adds to an Inspection Pools, which Services must not overlap, and Advertisers.
func Neighbours(ctx context.Context, c *cluster.Cluster, found *Scan) error {
	return eachCustom(ctx, c, neighbourKinds(), found, found.takeNeighbour)
}

func (i *Scan) takeNeighbour(o *unstructured.Unstructured) {
	name := references.Name(o.GetKind(), o)
	advertise := func(by string, ranges ...netip.Prefix) { i.advertise(Advertiser{Object: name, By: by, Ranges: ranges}) }
	switch o.GetKind() {
	case ipPool: // also a disabled one: Calico does no SNAT towards its addresses
		text, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
		if p, err := netip.ParsePrefix(text); err == nil {
			i.Pools = append(i.Pools, Pool{Object: name, Range: p})
		}
	case bgpConfig:
		for _, p := range ranges(fieldsOf(o, "cidr", "spec", "serviceClusterIPs")) {
			advertise("Calico by BGP (serviceClusterIPs)", p)
		}
	case bgpAdvert:
		if ciliumAdvertises(o) {
			advertise("Cilium by BGP (advertisementType: Service, ClusterIP)")
		}
	case bgpPeering:
		if ciliumPeers(o) {
			advertise("Cilium by BGP (serviceAdvertisements: ClusterIP)")
		}
	case connector:
		routes, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "subnetRouter", "advertiseRoutes")
		if all := ranges(routes); len(all) > 0 {
			advertise("Tailscale (subnetRouter)", all...)
		}
	}
}

func fieldsOf(o *unstructured.Unstructured, field string, list ...string) (all []string) {
	each, _, _ := unstructured.NestedSlice(o.Object, list...)
	for _, one := range each {
		m, _ := one.(map[string]any)
		if text, _ := m[field].(string); text != "" {
			all = append(all, text)
		}
	}
	return all
}

const clusterIP = "ClusterIP"

// ciliumAdvertises follows cilium/cilium pkg/k8s/apis/cilium.io/v2, CiliumBGPAdvertisement.
func ciliumAdvertises(o *unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(o.Object, "spec", "advertisements")
	return slices.ContainsFunc(all, func(one any) bool {
		m, _ := one.(map[string]any)
		kinds, _, _ := unstructured.NestedStringSlice(m, "service", "addresses")
		return m["advertisementType"] == "Service" && slices.Contains(kinds, clusterIP)
	})
}

// ciliumPeers follows pkg/k8s/apis/cilium.io/v2alpha1, CiliumBGPPeeringPolicy: without a selector
// no Service is advertised.
func ciliumPeers(o *unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(o.Object, "spec", "virtualRouters")
	return slices.ContainsFunc(all, func(one any) bool {
		m, _ := one.(map[string]any)
		kinds, _, _ := unstructured.NestedStringSlice(m, "serviceAdvertisements")
		return m["serviceSelector"] != nil && slices.Contains(kinds, clusterIP)
	})
}

// ranges leaves out texts that are none.
func ranges(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

func (i *Scan) advertise(a Advertiser) {
	same := func(b Advertiser) bool {
		return a.Object == b.Object && a.By == b.By && slices.Equal(a.Ranges, b.Ranges)
	}
	if !slices.ContainsFunc(i.Advertisers, same) {
		i.Advertisers = append(i.Advertisers, a)
	}
}

func (i *Scan) takeAdvertisers(o client.Object) {
	object, spec := template(o)
	switch o := o.(type) {
	case *corev1.Service:
		if o.Annotations["kube-router.io/service.advertise.clusterip"] == "true" {
			i.advertise(Advertiser{Object: references.Name("Service", o), By: "kube-router by BGP (its annotation)"})
		}
		return
	case *appsv1.StatefulSet:
		object, spec = references.Name("StatefulSet", o), &o.Spec.Template.Spec
	}
	if spec == nil {
		return
	}
	for n := range spec.Containers {
		c := &spec.Containers[n]
		words := commandLine(c)
		if v, ok := flag(words, "advertise-cluster-ip"); ok && v != "false" && (c.Name == "kube-router" || runs(words, "kube-router")) {
			i.advertise(Advertiser{Object: object, By: "kube-router by BGP (--advertise-cluster-ip)"})
		}
		if all := tailscaleRoutes(c, words); len(all) > 0 {
			i.advertise(Advertiser{Object: object, By: "Tailscale (a subnet router)", Ranges: all})
		}
	}
}

// tailscaleRoutes follows tailscale/tailscale cmd/containerboot and cmd/tailscale/cli.
func tailscaleRoutes(c *corev1.Container, words []string) []netip.Prefix {
	routes, _ := flag(words, "advertise-routes")
	for _, e := range c.Env {
		switch e.Name {
		case "TS_ROUTES":
			routes += "," + e.Value
		case "TS_EXTRA_ARGS":
			more, _ := flag(strings.Fields(e.Value), "advertise-routes")
			routes += "," + more
		}
	}
	return ranges(strings.Split(routes, ","))
}
