package main

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/test/soak/audit"
)

// camera takes snapshots of a cluster.
type camera struct {
	client   client.Client
	kinds    discovery.DiscoveryInterface
	metadata metadata.Interface
}

// take lists everything there is. Its parts are not of one moment: what changes meanwhile is to be looked at again.
func (c camera) take(ctx context.Context) (s audit.Snapshot, err error) {
	namespaces, services, endpoints := &corev1.NamespaceList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	pods, deployments := &corev1.PodList{}, &appsv1.DeploymentList{}
	ranges, addresses := &networkingv1.ServiceCIDRList{}, &networkingv1.IPAddressList{}
	for _, list := range []client.ObjectList{namespaces, services, endpoints, pods, deployments, ranges, addresses} {
		if err := c.client.List(ctx, list); err != nil {
			return s, err
		}
	}
	s = audit.Snapshot{
		Namespaces: namespaces.Items, Services: services.Items, Slices: endpoints.Items, Pods: pods.Items,
		Deployments: deployments.Items, ServiceCIDRs: ranges.Items, Addresses: addresses.Items,
	}
	s.Everything, err = c.everything(ctx)
	return s, err
}

// everything lists the metadata of all objects of all kinds, once each.
func (c camera) everything(ctx context.Context) ([]audit.Object, error) {
	lists, err := c.kinds.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	var all []audit.Object
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			resource := group.WithResource(r.Name)
			found, err := c.metadata.Resource(resource).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
			}
			for i := range found.Items {
				all = append(all, audit.Object{Resource: resource.GroupResource().String(), ObjectMeta: found.Items[i].ObjectMeta})
			}
		}
	}
	return all, nil
}
