package pools

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
)

// LoadCalico reads Calico's data; nil, if it has no pool that pods could get addresses of.
func LoadCalico(ctx context.Context, c *cluster.Cluster) (*calico.State, error) {
	state, err := calico.Load(ctx, c)
	if errors.Is(err, calico.ErrAbsent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(state.Pools, func(p calico.Pool) bool { return p.ForPods() }) {
		return nil, nil
	}
	return state, nil
}

// Load surveys a cluster with pools.
func Load(ctx context.Context, c *cluster.Cluster, shared *podmove.Inventory, state *calico.State) (*Inventory, error) {
	s, err := New(shared, state)
	if err != nil {
		return nil, err
	}
	if s.Namespaces, err = annotations(ctx, c); err != nil {
		return nil, err
	}
	if s.Unreservable, err = unreservable(ctx, c); err != nil {
		return nil, err
	}
	s.Installations, err = installations(ctx, c)
	return s, err
}

// annotations of namespaces, by name.
func annotations(ctx context.Context, c *cluster.Cluster) (map[string]map[string]string, error) {
	namespaces := &corev1.NamespaceList{}
	if err := c.List(ctx, namespaces); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	all := map[string]map[string]string{}
	for i := range namespaces.Items {
		all[namespaces.Items[i].Name] = namespaces.Items[i].Annotations
	}
	return all, nil
}

// unreservable reports whether Calico knows no IPReservations.
func unreservable(ctx context.Context, c *cluster.Cluster) (bool, error) {
	reservations := &unstructured.UnstructuredList{}
	reservations.SetGroupVersionKind(calico.GroupVersion().WithKind("IPReservationList"))
	err := c.List(ctx, reservations, client.Limit(1))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return false, fmt.Errorf("listing ipreservations: %w", err)
	}
	return apierrors.IsNotFound(err), nil
}

// installations of operators; none, if there is no operator or they may not be read.
func installations(ctx context.Context, c *cluster.Cluster) ([]Installation, error) {
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(schema.GroupVersionKind{Group: "operator.tigera.io", Version: "v1", Kind: "InstallationList"})
	err := c.List(ctx, found)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing installations: %w", err)
	}
	var all []Installation
	for i := range found.Items {
		one, err := ReadInstallation(&found.Items[i])
		if err != nil {
			return nil, fmt.Errorf("installation %s: %w", found.Items[i].GetName(), err)
		}
		all = append(all, one)
	}
	return all, nil
}

// ReadInstallation reads what a Tigera operator keeps up.
func ReadInstallation(u *unstructured.Unstructured) (Installation, error) {
	i := Installation{Name: u.GetName()}
	network, _, err := unstructured.NestedMap(u.Object, "spec", "calicoNetwork")
	if err != nil {
		return i, err
	}
	var fields struct {
		Pools []InstalledPool `json:"ipPools"`
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(network, &fields)
	i.Pools = fields.Pools
	return i, err
}
