package traffic

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/replumb/replumb/lab/workload"
)

// AddRoving has a Deployment keep a client for each node, when what it calls answers there, and follows what all its pods
// report: also those that it starts later, when it is restarted, and so call from other addresses. A pod that ends must
// have reported up to its end.
func (w *Watch) AddRoving(ctx context.Context, client kubernetes.Interface, nodes []string, calls Calls) error {
	calls = calls.at(w.share(len(nodes), calls))
	if err := scout(ctx, client, nodes, calls); err != nil {
		return err
	}
	config, _ := calls.config("")
	deployment, err := workload.Clients(calls.Namespace, calls.client(), int32(len(nodes)), config)
	if err != nil {
		return err
	}
	maps.Copy(deployment.Spec.Template.Labels, calls.Labels)
	deployment.Spec.Template.Annotations = calls.Annotations
	if err := workload.Ensure(ctx, client, deployment); err != nil {
		return err
	}
	if err := workload.WaitReady(ctx, client, readyTimeout, deployment); err != nil {
		return err
	}
	return w.followAll(ctx, client, metav1.FormatLabelSelector(deployment.Spec.Selector), calls)
}

// followAll follows the pods there are, and those that come, until the watch is stopped.
func (w *Watch) followAll(ctx context.Context, client kubernetes.Interface, selector string, calls Calls) error {
	pods := client.CoreV1().Pods(calls.Namespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return pods.Watch(ctx, o)
		},
	}
	informer := cache.NewSharedInformer(cache.ToListWatcherWithWatchListSemantics(source, client), &corev1.Pod{}, 0)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.meet(o.(*corev1.Pod), calls) },
		UpdateFunc: func(_, o any) { w.meet(o.(*corev1.Pod), calls) },
	})
	if err != nil {
		return err
	}
	w.running.Go(func() { informer.RunWithContext(w.ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("list clients %s of %s: %w", calls.client(), calls.Namespace, context.Cause(ctx))
	}
	return nil
}

// meet follows a pod from the moment it has a log.
func (w *Watch) meet(pod *corev1.Pod, calls Calls) {
	name := podName{pod.Namespace, pod.Name}
	if pod.Status.Phase != corev1.PodRunning || w.roves(name) {
		return
	}
	_, sources := calls.config(pod.Spec.NodeName)
	for target, from := range sources {
		from.Client = pod.Name
		sources[target] = from
	}
	w.mu.Lock()
	w.roving[name] = true
	w.mu.Unlock()
	w.expect(name, sources)
	w.follow(name)
}
