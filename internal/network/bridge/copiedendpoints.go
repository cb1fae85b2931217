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

// managedBy marks replumb's EndpointSlices, which controllers leave alone.
const managedBy = "replumb.dev"

// copyEndpoints makes the bridge of a Service without selector have the same EndpointSlices. With a
// selector it needs none.
func copyEndpoints(ctx context.Context, c client.Client, service types.NamespacedName, bridge *corev1.Service) error {
	originals, err := slicesOf(ctx, c, service)
	if err != nil {
		return err
	}
	copies, err := slicesOf(ctx, c, client.ObjectKeyFromObject(bridge))
	if err != nil {
		return err
	}
	err = copyingOf(originals, copies, bridge).write(ctx, c)
	if apierrors.IsAlreadyExists(err) { // a follower was quicker
		return engine.NotYet("%w", err)
	}
	return err
}

type copying struct {
	create []discoveryv1.EndpointSlice
	change []changed
	remove []discoveryv1.EndpointSlice
}

type changed struct{ have, want *discoveryv1.EndpointSlice }

func (c copying) empty() bool { return len(c.create)+len(c.change)+len(c.remove) == 0 }

func copyingOf(originals, copies []discoveryv1.EndpointSlice, bridge *corev1.Service) copying {
	var all copying
	want := copiesOf(originals, bridge)
	for i := range want {
		w := &want[i]
		at := slices.IndexFunc(copies, func(have discoveryv1.EndpointSlice) bool { return have.Name == w.Name })
		switch {
		case at < 0:
			all.create = append(all.create, *w)
		case copies[at].AddressType != w.AddressType: // which cannot be changed: the next look creates it
			all.remove = append(all.remove, copies[at])
		case !equality.Semantic.DeepEqual(copies[at].Endpoints, w.Endpoints) || !equality.Semantic.DeepEqual(copies[at].Ports, w.Ports):
			next := copies[at].DeepCopy()
			next.Endpoints, next.Ports = w.Endpoints, w.Ports
			all.change = append(all.change, changed{&copies[at], next})
		}
	}
	for i := range copies {
		have := &copies[i]
		wanted := slices.ContainsFunc(want, func(w discoveryv1.EndpointSlice) bool { return w.Name == have.Name })
		if !wanted && have.Labels[discoveryv1.LabelManagedBy] == managedBy {
			all.remove = append(all.remove, *have)
		}
	}
	return all
}

// write adds endpoints before it removes others.
func (c copying) write(ctx context.Context, to client.Client) error {
	failed := func(s *discoveryv1.EndpointSlice, err error) error {
		return fmt.Errorf("endpointslice %s/%s: %w", s.Namespace, s.Name, err)
	}
	for i := range c.create {
		if err := to.Create(ctx, &c.create[i], client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return failed(&c.create[i], err)
		}
	}
	for _, s := range c.change {
		patch := client.MergeFromWithOptions(s.have, client.MergeFromWithOptimisticLock{})
		if err := to.Patch(ctx, s.want, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return failed(s.want, err)
		}
	}
	for i := range c.remove {
		s := &c.remove[i]
		if err := to.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return failed(s, err)
		}
	}
	return nil
}

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

// removeCopies is for clusters without a garbage collector.
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
