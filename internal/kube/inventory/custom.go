package inventory

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/references"
)

// customKind has the version to ask for where the definition cannot be read.
type customKind struct{ group, version, resource, kind string }

// name is that of the CustomResourceDefinition, and the key in Inspection.Unread.
func (k customKind) name() string { return k.resource + "." + k.group }

const (
	gatewayGroup = "gateway.networking.k8s.io"
	ciliumGroup  = "cilium.io"
	istioGroup   = "networking.istio.io"
)

func policyKinds() []customKind {
	return []customKind{
		{cluster.CalicoGroup, "v1", "networkpolicies", "NetworkPolicy"},
		{cluster.CalicoGroup, "v1", "globalnetworkpolicies", "GlobalNetworkPolicy"},
		{cluster.CalicoGroup, "v1", "networksets", "NetworkSet"},
		{cluster.CalicoGroup, "v1", "globalnetworksets", "GlobalNetworkSet"},
		{ciliumGroup, "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy"},
		{ciliumGroup, "v2", "ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy"},
		{ciliumGroup, "v2", "ciliumcidrgroups", "CiliumCIDRGroup"},
		{"security.istio.io", "v1", "authorizationpolicies", "AuthorizationPolicy"},
	}
}

func settingKinds() []customKind {
	return slices.Concat(routeKinds(), []customKind{
		{gatewayGroup, "v1", "gateways", "Gateway"},
		{gatewayGroup, "v1alpha2", "tcproutes", "TCPRoute"},
		{gatewayGroup, "v1alpha2", "tlsroutes", "TLSRoute"},
		{gatewayGroup, "v1alpha2", "udproutes", "UDPRoute"},
		{istioGroup, "v1", "serviceentries", "ServiceEntry"},
		{istioGroup, "v1", "workloadentries", "WorkloadEntry"},
		{istioGroup, "v1", "destinationrules", "DestinationRule"},
		{cluster.CertManagerGroup, "v1", "certificates", "Certificate"},
		{cluster.CertManagerGroup, "v1", "issuers", "Issuer"},
		{cluster.CertManagerGroup, "v1", "clusterissuers", "ClusterIssuer"},
		{"externaldns.k8s.io", "v1alpha1", "dnsendpoints", "DNSEndpoint"},
		{"metallb.io", "v1beta1", "ipaddresspools", "IPAddressPool"},
	})
}

func listRights(kinds []customKind) (all []access.Right) {
	for _, k := range kinds {
		all = append(all, access.Grant(k.group, k.resource, "", "list")...)
	}
	return all
}

func names(kinds []customKind) (all []string) {
	for _, k := range kinds {
		all = append(all, k.name())
	}
	return all
}

// PolicyResources allow and deny traffic. Names are those of Inspection.Unread.
func PolicyResources() []string { return names(policyKinds()) }

// SettingResources may name addresses. Names are those of Inspection.Unread.
func SettingResources() []string { return names(settingKinds()) }

const definitions = "customresourcedefinitions"

// eachCustom tries all kinds where the user may not list definitions.
func eachCustom(
	ctx context.Context, c *cluster.Cluster, kinds []customKind, found *Scan, take func(*unstructured.Unstructured),
) error {
	for _, k := range kinds {
		version, defined := found.defined[k.name()]
		if !defined && !found.Unread[definitions] {
			continue
		}
		if version != "" {
			k.version = version
		}
		if err := found.noteUnread(k.name(), eachOf(ctx, c, k, take)); err != nil {
			return err
		}
	}
	return nil
}

// eachOf asks by path, since the client has no mapping for the kind.
func eachOf(ctx context.Context, c *cluster.Cluster, k customKind, take func(*unstructured.Unstructured)) error {
	token := ""
	for {
		body, err := c.GetQuery(ctx, path.Join("/apis", k.group, k.version, k.resource),
			map[string]string{"limit": strconv.Itoa(cluster.PageSize), "continue": token})
		if err != nil {
			return fmt.Errorf("listing %s: %w", k.name(), err)
		}
		page := &unstructured.UnstructuredList{}
		if err := page.UnmarshalJSON(body); err != nil {
			return fmt.Errorf("listing %s: %w", k.name(), err)
		}
		for i := range page.Items {
			take(&page.Items[i])
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

// define notes a kind with its version of storage if that is served, or else another served one.
func (i *Scan) define(o *apiextensionsv1.CustomResourceDefinition) {
	if i.defined == nil {
		i.defined = map[string]string{}
	}
	version := ""
	for _, v := range o.Spec.Versions {
		if v.Served && (version == "" || v.Storage) {
			version = v.Name
		}
	}
	i.defined[o.Name] = version
}

func (i *Scan) takeCustom(scanner *references.Scanner, o *unstructured.Unstructured) {
	is := func(k customKind) bool { return k.group == o.GroupVersionKind().Group && k.kind == o.GetKind() }
	if slices.ContainsFunc(routeKinds(), is) {
		i.takeRoute(o)
	}
	if slices.ContainsFunc(policyKinds(), is) || slices.ContainsFunc(settingKinds(), is) {
		i.References = append(i.References, scanner.Find(o)...)
	}
	if slices.ContainsFunc(neighbourKinds(), is) {
		i.takeNeighbour(o)
	}
}
