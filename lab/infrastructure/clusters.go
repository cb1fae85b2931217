package main

import (
	"context"
	"net/netip"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clusters says where the API of a LabCluster is. There is nothing to make: the lab has what leads there from the first.
type clusters struct {
	client.Client
	endpoint netip.AddrPort
}

// Reconcile implements reconcile.Reconciler.
func (r *clusters) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	cluster := infrastructure("LabCluster")
	if err := r.Get(ctx, request.NamespacedName, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if cluster.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, nil
	}
	was := cluster.DeepCopy()
	set(cluster, map[string]any{"host": r.endpoint.Addr().String(), "port": int64(r.endpoint.Port())}, "spec", "controlPlaneEndpoint")
	if err := r.Patch(ctx, cluster, client.MergeFrom(was)); err != nil {
		return ctrl.Result{}, err
	}
	was = cluster.DeepCopy()
	set(cluster, true, "status", "initialization", "provisioned")
	return ctrl.Result{}, r.Status().Patch(ctx, cluster, client.MergeFrom(was))
}

// set gives a field a value. Its parents are objects, by their definitions.
func set(o *unstructured.Unstructured, value any, fields ...string) {
	if err := unstructured.SetNestedField(o.Object, value, fields...); err != nil {
		panic(err)
	}
}
