package bridge

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// resync is how often all copies are compared again, should someone else have changed one.
	resync = 5 * time.Minute
	// retryMin and retryMax bound the pause before a copy that failed is tried again; it doubles from one to the other.
	retryMin = 100 * time.Millisecond
	retryMax = 10 * time.Second
)

// Follow copies endpoints to the bridges of a migration, or of all if it is empty, whenever those of a Service without selector change, until ctx
// ends. What fails is tried again. report gets each failure that a second attempt does not resolve, and nil once none is left;
// it is not called concurrently.
func Follow(ctx context.Context, c client.WithWatch, migration string, report func(error)) {
	f := &follower{
		client: c, migration: migration, report: report, failures: map[types.NamespacedName]string{},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryMin, retryMax),
		),
	}
	informer := f.informer()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { informer.RunWithContext(ctx) })
	defer context.AfterFunc(ctx, f.queue.ShutDown)()
	defer f.queue.ShutDown()
	f.queue.Add(everything())
	for f.next(ctx) {
	}
}

// The queue holds Services whose copies may be out of date. These two are none: everything stands for all bridges, and
// watching for the watch itself.
func everything() types.NamespacedName { return types.NamespacedName{Name: "*"} }
func watching() types.NamespacedName   { return types.NamespacedName{Name: "watch"} }

type follower struct {
	client    client.WithWatch
	migration string
	report    func(error)
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu       sync.Mutex
	failures map[types.NamespacedName]string
}

// informer queues the Service of each slice that changes.
func (f *follower) informer() cache.SharedIndexInformer {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		all := &discoveryv1.EndpointSliceList{}
		err := f.client.List(ctx, all, &client.ListOptions{LabelSelector: handMade(), Limit: o.Limit, Continue: o.Continue, Raw: &o})
		f.note(ctx, watching(), err)
		return all, err
	}
	follow := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := f.client.Watch(ctx, &discoveryv1.EndpointSliceList{}, &client.ListOptions{LabelSelector: handMade(), Raw: &o})
		f.note(ctx, watching(), err)
		return w, err
	}
	source := &cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: follow}
	informer := cache.NewSharedIndexInformer(source, &discoveryv1.EndpointSlice{}, resync, nil)
	// The two errors are those of an informer that has been started already; this one has not.
	_ = informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}) // list and follow report
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: f.changed, UpdateFunc: func(_, o any) { f.changed(o) }, DeleteFunc: f.changed,
	})
	return informer
}

func (f *follower) changed(o any) {
	if gone, is := o.(cache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	if slice, is := o.(*discoveryv1.EndpointSlice); is {
		f.queue.Add(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]})
	}
}

// next copies the endpoints of one Service. It returns false once the queue is shut down.
func (f *follower) next(ctx context.Context) bool {
	service, end := f.queue.Get()
	if end {
		return false
	}
	defer f.queue.Done(service)
	err := f.copy(ctx, service)
	if err == nil {
		f.queue.Forget(service)
		f.note(ctx, service, nil)
		return true
	}
	if f.queue.NumRequeues(service) > 0 {
		f.note(ctx, service, err)
	}
	f.queue.AddRateLimited(service)
	return true
}

// note reports what has become of something, if that is news.
func (f *follower) note(ctx context.Context, what types.NamespacedName, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, failed := f.failures[what]
	switch {
	case ctx.Err() != nil:
	case err == nil && failed:
		if delete(f.failures, what); len(f.failures) == 0 {
			f.report(nil)
		}
	case err != nil && err.Error() != before:
		f.failures[what] = err.Error()
		f.report(err)
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

// copy brings the bridges of a Service up to date, or all.
func (f *follower) copy(ctx context.Context, service types.NamespacedName) error {
	bridges := &corev1.ServiceList{}
	of := client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleBridge}
	if f.migration != "" {
		of[v1alpha1.LabelMigration] = f.migration
	}
	if err := f.client.List(ctx, bridges, client.InNamespace(service.Namespace), of); err != nil {
		return fmt.Errorf("listing bridges: %w", err)
	}
	for i := range bridges.Items {
		b := &bridges.Items[i]
		if len(b.Spec.Selector) > 0 || !b.DeletionTimestamp.IsZero() {
			continue
		}
		of := types.NamespacedName{Namespace: b.Namespace, Name: b.Annotations[v1alpha1.AnnotationService]}
		if service != everything() && service != of {
			continue
		}
		if err := CopyEndpoints(ctx, f.client, of, b); err != nil {
			return err
		}
	}
	return nil
}
