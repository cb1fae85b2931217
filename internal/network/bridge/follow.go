package bridge

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Follow copies endpoints to the bridges of a migration, or of all if it is empty, whenever those of a Service without selector change, until ctx
// ends. Errors are passed over: it looks again, and whoever depends on the copies proves them.
func Follow(ctx context.Context, c client.WithWatch, migration string) {
	f := &follower{client: c, migration: migration}
	wait.UntilWithContext(ctx, f.once, time.Second)
}

type follower struct {
	client    client.WithWatch
	migration string
}

// once copies everything, and then what changes as long as the watch lasts.
func (f *follower) once(ctx context.Context) {
	events, err := f.client.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.MatchingLabelsSelector{Selector: handMade()})
	if err != nil {
		return
	}
	defer events.Stop()
	if f.all(ctx) != nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events.ResultChan():
			slice, is := e.Object.(*discoveryv1.EndpointSlice)
			if !ok || !is || e.Type == watch.Error {
				return
			}
			f.one(ctx, slice)
		}
	}
}

// handMade selects the slices that no selector makes.
func handMade() labels.Selector {
	// The name of the EndpointSlice controller (k8s.io/kubernetes pkg/controller/endpointslice, controllerName).
	byController, err := labels.NewRequirement(
		discoveryv1.LabelManagedBy,
		selection.NotIn,
		[]string{"endpointslice-controller.k8s.io", managedBy},
	)
	if err != nil { // the requirement is a constant
		return labels.Everything()
	}
	return labels.NewSelector().Add(*byController)
}

func (f *follower) bridges(ctx context.Context, opts ...client.ListOption) ([]corev1.Service, error) {
	all := &corev1.ServiceList{}
	of := client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleBridge}
	if f.migration != "" {
		of[v1alpha1.LabelMigration] = f.migration
	}
	err := f.client.List(ctx, all, append(opts, of)...)
	return all.Items, err
}

func (f *follower) all(ctx context.Context) error {
	bridges, err := f.bridges(ctx)
	if err != nil {
		return err
	}
	for i := range bridges {
		if err := f.mirror(ctx, &bridges[i]); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) one(ctx context.Context, slice *discoveryv1.EndpointSlice) {
	bridges, err := f.bridges(ctx, client.InNamespace(slice.Namespace))
	if err != nil {
		return
	}
	for i := range bridges {
		if bridges[i].Annotations[v1alpha1.AnnotationService] == slice.Labels[discoveryv1.LabelServiceName] {
			_ = f.mirror(ctx, &bridges[i]) // the next look makes up for it
		}
	}
}

func (f *follower) mirror(ctx context.Context, bridge *corev1.Service) error {
	if len(bridge.Spec.Selector) > 0 || !bridge.DeletionTimestamp.IsZero() {
		return nil
	}
	service := types.NamespacedName{Namespace: bridge.Namespace, Name: bridge.Annotations[v1alpha1.AnnotationService]}
	return Mirror(ctx, f.client, service, bridge)
}
