package workload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

// Ensure creates the objects that are not there yet, in the order given. An object that is there stays as it is.
func Ensure(ctx context.Context, client kubernetes.Interface, objects ...runtime.Object) error {
	for _, object := range objects {
		if err := create(ctx, client, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s: %w", describe(object), err)
		}
	}
	return nil
}

func create(ctx context.Context, client kubernetes.Interface, object runtime.Object) (err error) {
	var options metav1.CreateOptions
	switch o := object.(type) {
	case *corev1.Namespace:
		_, err = client.CoreV1().Namespaces().Create(ctx, o, options)
	case *corev1.Service:
		_, err = client.CoreV1().Services(o.Namespace).Create(ctx, o, options)
	case *corev1.Pod:
		_, err = client.CoreV1().Pods(o.Namespace).Create(ctx, o, options)
	case *appsv1.Deployment:
		_, err = client.AppsV1().Deployments(o.Namespace).Create(ctx, o, options)
	case *appsv1.StatefulSet:
		_, err = client.AppsV1().StatefulSets(o.Namespace).Create(ctx, o, options)
	case *appsv1.DaemonSet:
		_, err = client.AppsV1().DaemonSets(o.Namespace).Create(ctx, o, options)
	case *appsv1.ReplicaSet:
		_, err = client.AppsV1().ReplicaSets(o.Namespace).Create(ctx, o, options)
	case *batchv1.Job:
		_, err = client.BatchV1().Jobs(o.Namespace).Create(ctx, o, options)
	case *policyv1.PodDisruptionBudget:
		_, err = client.PolicyV1().PodDisruptionBudgets(o.Namespace).Create(ctx, o, options)
	case *networkingv1.NetworkPolicy:
		_, err = client.NetworkingV1().NetworkPolicies(o.Namespace).Create(ctx, o, options)
	default:
		err = createAccess(ctx, client, object)
	}
	return err
}

// createAccess creates what a workload needs to use the API.
func createAccess(ctx context.Context, client kubernetes.Interface, object runtime.Object) (err error) {
	var options metav1.CreateOptions
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
	case *rbacv1.ClusterRole:
		_, err = client.RbacV1().ClusterRoles().Create(ctx, o, options)
	case *rbacv1.ClusterRoleBinding:
		_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
	case *networkingv1.IngressClass:
		_, err = client.NetworkingV1().IngressClasses().Create(ctx, o, options)
	default:
		err = errors.New("no kind of object that workloads have")
	}
	return err
}

func describe(object runtime.Object) string {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", object), "*v1.")
	if o, ok := object.(metav1.Object); ok {
		return kind + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	}
	return kind
}

// WaitReady waits, by watching, until the workloads and Pods among the objects are ready, and the Jobs have ended well.
// The error says which is not, and why.
func WaitReady(ctx context.Context, client kubernetes.Interface, timeout time.Duration, objects ...runtime.Object) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, object := range objects {
		var err error
		switch o := object.(type) {
		case *corev1.Pod:
			err = waitPod(ctx, client, o)
		default:
			if k, ok := kindOf(client, object); ok {
				err = waitWorkload(ctx, client, k)
			}
		}
		if err != nil {
			return fmt.Errorf("wait for %s: %w", describe(object), err)
		}
	}
	return nil
}

// kind is how a workload is followed.
type kind struct {
	empty           runtime.Object
	namespace, name string
	selector        *metav1.LabelSelector
	list            func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch           func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// kindOf is false for objects there is nothing to wait for.
func kindOf(client kubernetes.Interface, object runtime.Object) (kind, bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		c := client.AppsV1().Deployments(o.Namespace)
		return kind{&appsv1.Deployment{}, o.Namespace, o.Name, o.Spec.Selector, lister(c.List), c.Watch}, true
	case *appsv1.StatefulSet:
		c := client.AppsV1().StatefulSets(o.Namespace)
		return kind{&appsv1.StatefulSet{}, o.Namespace, o.Name, o.Spec.Selector, lister(c.List), c.Watch}, true
	case *appsv1.DaemonSet:
		c := client.AppsV1().DaemonSets(o.Namespace)
		return kind{&appsv1.DaemonSet{}, o.Namespace, o.Name, o.Spec.Selector, lister(c.List), c.Watch}, true
	case *appsv1.ReplicaSet:
		c := client.AppsV1().ReplicaSets(o.Namespace)
		return kind{&appsv1.ReplicaSet{}, o.Namespace, o.Name, o.Spec.Selector, lister(c.List), c.Watch}, true
	case *batchv1.Job:
		c := client.BatchV1().Jobs(o.Namespace)
		pods := &metav1.LabelSelector{MatchLabels: o.Spec.Template.Labels}
		return kind{&batchv1.Job{}, o.Namespace, o.Name, pods, lister(c.List), c.Watch}, true
	}
	return kind{}, false
}

func lister[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error),
) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) }
}

func waitWorkload(ctx context.Context, client kubernetes.Interface, k kind) error {
	var last string
	err := untilEvent(ctx, client, k.empty, k.name, k.list, k.watch, func(event watch.Event) (bool, error) {
		have, want, ok := replicas(event.Object)
		last = fmt.Sprintf("%d of %d replicas available", have, want)
		if !ok {
			last = "not yet seen by its controller"
		}
		return ok && have >= want, nil
	})
	if err == nil {
		return nil
	}
	// The wait's own time is over, so asking why needs some more.
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return fmt.Errorf("%s%s: %w", last, whyNotReady(ask, client, k), err)
}

// replicas are how many pods of a workload are as they should be, and how many should be; false, while its controller has
// not seen its present generation.
func replicas(object runtime.Object) (have, want int32, ok bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return o.Status.AvailableReplicas, ptr.Deref(o.Spec.Replicas, 1), o.Status.ObservedGeneration >= o.Generation
	case *appsv1.StatefulSet:
		return o.Status.AvailableReplicas, ptr.Deref(o.Spec.Replicas, 1), o.Status.ObservedGeneration >= o.Generation
	case *appsv1.DaemonSet:
		return o.Status.NumberAvailable, max(1, o.Status.DesiredNumberScheduled), o.Status.ObservedGeneration >= o.Generation
	case *appsv1.ReplicaSet:
		return o.Status.AvailableReplicas, ptr.Deref(o.Spec.Replicas, 1), o.Status.ObservedGeneration >= o.Generation
	case *batchv1.Job:
		return o.Status.Succeeded, ptr.Deref(o.Spec.Completions, 1), true
	}
	return 0, 0, false
}

// whyNotReady names what holds the pods of a workload up, as far as it can be learnt.
func whyNotReady(ctx context.Context, client kubernetes.Interface, k kind) string {
	selector := metav1.FormatLabelSelector(k.selector)
	pods, err := client.CoreV1().Pods(k.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return ""
	}
	var reasons strings.Builder
	for i := range pods.Items {
		if ready, reason := podReady(&pods.Items[i]); !ready {
			fmt.Fprintf(&reasons, "; pod %s: %s", pods.Items[i].Name, reason)
		}
	}
	return reasons.String()
}

func waitPod(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) error {
	pods := client.CoreV1().Pods(p.Namespace)
	var last string
	err := untilEvent(ctx, client, &corev1.Pod{}, p.Name,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		pods.Watch,
		func(event watch.Event) (bool, error) {
			seen, ok := event.Object.(*corev1.Pod)
			if !ok {
				return false, nil
			}
			var ready bool
			ready, last = podReady(seen)
			if over := seen.Status.Phase == corev1.PodFailed || seen.Status.Phase == corev1.PodSucceeded; over {
				return false, errors.New("it has ended")
			}
			return ready, nil
		})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", last, err)
}

// podReady says whether the pod is ready and, if not, the most telling thing its status has to say.
func podReady(p *corev1.Pod) (bool, string) {
	reason := "phase " + string(p.Status.Phase)
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true, ""
		}
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			reason = c.Message
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil && c.State.Waiting.Reason != "" {
			reason = strings.TrimSuffix(c.State.Waiting.Reason+": "+c.State.Waiting.Message, ": ")
		}
		if c.State.Terminated != nil {
			reason = strings.TrimSpace(fmt.Sprintf("exit code %d %s", c.State.Terminated.ExitCode, c.State.Terminated.Message))
		}
	}
	return false, reason
}

// untilEvent follows one object by name until done says so.
func untilEvent(
	ctx context.Context, client kubernetes.Interface, kind runtime.Object, name string,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
	done watchtools.ConditionFunc,
) error {
	only := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			only(&o)
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			only(&o)
			return follow(ctx, o)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(source, client), kind, nil, done)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
