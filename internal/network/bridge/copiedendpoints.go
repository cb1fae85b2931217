package bridge

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// managedBy is whose EndpointSlices replumb's are; the controllers leave those of others alone.
const managedBy = "replumb.dev"

// CopyEndpoints copies the EndpointSlices of a Service without selector to its bridge, and removes copies whose original is gone.
// It writes only what differs. A Service with a selector needs no copies: the bridge has the same selector.
func CopyEndpoints(ctx context.Context, c client.Client, service types.NamespacedName, bridge *corev1.Service) error {
	originals, err := slicesOf(ctx, c, service)
	if err != nil {
		return err
	}
	copies, err := slicesOf(ctx, c, client.ObjectKeyFromObject(bridge))
	if err != nil {
		return err
	}
	want := copiesOf(originals, bridge)
	for i := range want {
		if err := ensureCopy(ctx, c, copies, &want[i]); err != nil {
			return fmt.Errorf("endpointslice %s/%s: %w", want[i].Namespace, want[i].Name, err)
		}
	}
	for i := range copies {
		have := &copies[i]
		wanted := slices.ContainsFunc(want, func(w discoveryv1.EndpointSlice) bool { return w.Name == have.Name })
		if wanted || have.Labels[discoveryv1.LabelManagedBy] != managedBy {
			continue
		}
		if err := c.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("endpointslice %s/%s: %w", have.Namespace, have.Name, err)
		}
	}
	return nil
}

func ensureCopy(ctx context.Context, c client.Client, copies []discoveryv1.EndpointSlice, want *discoveryv1.EndpointSlice) error {
	i := slices.IndexFunc(copies, func(have discoveryv1.EndpointSlice) bool { return have.Name == want.Name })
	if i < 0 {
		err := c.Create(ctx, want, client.FieldOwner(v1alpha1.FieldManager))
		if apierrors.IsAlreadyExists(err) { // Follow was quicker
			return engine.NotYet("was created by someone else meanwhile")
		}
		return err
	}
	have := &copies[i]
	if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) {
		return nil
	}
	was := have.DeepCopy()
	have.Endpoints, have.Ports = want.Endpoints, want.Ports
	return c.Patch(ctx, have, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager))
}

// copiesOf makes the EndpointSlices that a bridge should have: one for each of the Service's.
func copiesOf(originals []discoveryv1.EndpointSlice, bridge *corev1.Service) []discoveryv1.EndpointSlice {
	var all []discoveryv1.EndpointSlice
	for i := range originals {
		o := &originals[i]
		all = append(all, discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: bridge.Namespace,
				Name:      copyName(bridge.Name, o.Name),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: bridge.Name,
					discoveryv1.LabelManagedBy:   managedBy,
					v1alpha1.LabelMigration:      bridge.Labels[v1alpha1.LabelMigration],
					v1alpha1.LabelRole:           v1alpha1.RoleBridge,
				},
				// The API server's garbage collector takes them away with the bridge.
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: bridge.Name, UID: bridge.UID}},
			},
			AddressType: o.AddressType,
			Endpoints:   o.Endpoints,
			Ports:       o.Ports,
		})
	}
	return all
}

func copyName(bridge, original string) string {
	sum := sha256.Sum256([]byte(original))
	return bridge + "-" + hex.EncodeToString(sum[:])[:8]
}

func slicesOf(ctx context.Context, c client.Client, service types.NamespacedName) ([]discoveryv1.EndpointSlice, error) {
	all := &discoveryv1.EndpointSliceList{}
	err := c.List(ctx, all, client.InNamespace(service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return nil, fmt.Errorf("endpoints of service %s: %w", service, err)
	}
	return all.Items, nil
}

// removeCopies takes the copies of a bridge away, for clusters without a garbage collector.
func removeCopies(ctx context.Context, c client.Client, bridge types.NamespacedName) error {
	copies, err := slicesOf(ctx, c, bridge)
	if err != nil {
		return err
	}
	for i := range copies {
		if copies[i].Labels[discoveryv1.LabelManagedBy] != managedBy {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, &copies[i])); err != nil {
			return fmt.Errorf("endpointslice %s/%s: %w", copies[i].Namespace, copies[i].Name, err)
		}
	}
	return nil
}
