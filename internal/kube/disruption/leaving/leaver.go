package leaving

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Leaver has pods leave their Services. All of it can be repeated, by another process as well.
type Leaver struct {
	Client    client.Client
	Migration string
}

// StuckError says that a pod cannot leave its Services without affecting NetworkPolicies.
type StuckError struct {
	Pod types.NamespacedName
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("pod %s cannot leave its Services: NetworkPolicies, or its owner, go by the same labels", e.Pod)
}

func (l Leaver) Find(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	err := l.Client.List(ctx, all, client.InNamespace(namespace),
		client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleLeaving, v1alpha1.LabelMigration: l.Migration})
	if err != nil {
		return nil, fmt.Errorf("pods that leave: %w", err)
	}
	return all.Items, nil
}

func (l Leaver) Services(ctx context.Context, pod *corev1.Pod) ([]corev1.Service, error) {
	all := &corev1.ServiceList{}
	if err := l.Client.List(ctx, all, client.InNamespace(pod.Namespace)); err != nil {
		return nil, fmt.Errorf("services in %s: %w", pod.Namespace, err)
	}
	return Selecting(all.Items, pod.Labels), nil
}

// Release takes a pod from its ReplicaSet, which then makes another. It stays in its Services.
func (l Leaver) Release(ctx context.Context, pod *corev1.Pod, owner Owner) error {
	next, err := release(pod, l.Migration, owner)
	if err != nil {
		return err
	}
	return l.relabel(ctx, pod, next)
}

// Restore gives a pod its labels back: its controller and its Services find it again.
func (l Leaver) Restore(ctx context.Context, pod *corev1.Pod) error {
	if err := l.relabel(ctx, pod, restored(pod)); err != nil {
		return err
	}
	return l.Part(ctx, pod)
}

// Leave has a pod leave its Services. It fails with a StuckError if that changed what one of keep,
// or a NetworkPolicy, says of the pod.
func (l Leaver) Leave(ctx context.Context, pod *corev1.Pod, keep ...labels.Selector) error {
	services, err := l.Services(ctx, pod)
	if err != nil || len(services) == 0 {
		return err
	}
	keys, err := l.choose(ctx, pod, services, keep)
	if err != nil {
		return err
	}
	next, err := leave(pod, l.Migration, keys)
	if err != nil {
		return err
	}
	if err := l.farewell(ctx, pod, services); err != nil {
		return err
	}
	return l.relabel(ctx, pod, next)
}

// Can returns nil if a pod could leave its Services, and a StuckError if it could not.
func (l Leaver) Can(ctx context.Context, pod *corev1.Pod, keep ...labels.Selector) error {
	services, err := l.Services(ctx, pod)
	if err != nil {
		return err
	}
	_, err = l.choose(ctx, pod, services, keep)
	return err
}

func (l Leaver) choose(ctx context.Context, pod *corev1.Pod, services []corev1.Service, keep []labels.Selector) ([]string, error) {
	policies := &networkingv1.NetworkPolicyList{}
	if err := l.Client.List(ctx, policies); err != nil {
		return nil, fmt.Errorf("networkpolicies: %w", err)
	}
	keys, ok := Choose(pod.Labels, services, slices.Concat(keep, Policies(policies.Items, pod.Namespace)))
	if !ok {
		return nil, &StuckError{Pod: client.ObjectKeyFromObject(pod)}
	}
	return keys, nil
}

// farewell makes the slices that keep a pod as an endpoint that ends.
func (l Leaver) farewell(ctx context.Context, pod *corev1.Pod, services []corev1.Service) error {
	all, err := l.slices(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range farewells(all, services, pod, l.Migration) {
		err := l.Client.Create(ctx, &s, client.FieldOwner(v1alpha1.FieldManager))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("endpointslice %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

// Left returns nil once no Service leads to a pod, as far as the API server knows.
func (l Leaver) Left(ctx context.Context, pod *corev1.Pod) error {
	services, err := l.Services(ctx, pod)
	if err != nil {
		return err
	}
	for i := range services {
		return engine.NotYet("pod %s/%s is in Service %s", pod.Namespace, pod.Name, services[i].Name)
	}
	all, err := l.slices(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range Leads(all, pod) {
		return engine.NotYet("endpointslice %s/%s names pod %s", s.Namespace, s.Name, pod.Name)
	}
	return nil
}

// In returns nil once all Services of a pod lead to it, as far as the API server knows.
func (l Leaver) In(ctx context.Context, pod *corev1.Pod) error {
	services, err := l.Services(ctx, pod)
	if err != nil {
		return err
	}
	all, err := l.slices(ctx, pod)
	if err != nil {
		return err
	}
	leads := Leads(all, pod)
	for i := range services {
		if !slices.ContainsFunc(leads, func(s discoveryv1.EndpointSlice) bool {
			return s.Labels[discoveryv1.LabelServiceName] == services[i].Name && serves(&s, pod)
		}) {
			return engine.NotYet("service %s/%s does not lead to pod %s yet", pod.Namespace, services[i].Name, pod.Name)
		}
	}
	return nil
}

// Part removes what kept a pod as an endpoint that ends.
func (l Leaver) Part(ctx context.Context, pod *corev1.Pod) error {
	all, err := l.slices(ctx, pod)
	if err != nil {
		return err
	}
	for i := range all {
		if !farewell(&all[i]) || all[i].Annotations[v1alpha1.AnnotationLeaving] != string(pod.UID) {
			continue
		}
		if err := l.Client.Delete(ctx, &all[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("endpointslice %s/%s: %w", all[i].Namespace, all[i].Name, err)
		}
	}
	return nil
}

func (l Leaver) End(ctx context.Context, pod *corev1.Pod) error {
	err := l.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) { // in conflict with another pod of the name
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func (l Leaver) slices(ctx context.Context, pod *corev1.Pod) ([]discoveryv1.EndpointSlice, error) {
	all := &discoveryv1.EndpointSliceList{}
	if err := l.Client.List(ctx, all, client.InNamespace(pod.Namespace)); err != nil {
		return nil, fmt.Errorf("endpointslices in %s: %w", pod.Namespace, err)
	}
	return all.Items, nil
}

// relabel writes what differs, unless the pod has changed meanwhile.
func (l Leaver) relabel(ctx context.Context, pod, next *corev1.Pod) error {
	patch := client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{})
	if err := l.Client.Patch(ctx, next, patch, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		changed := strings.Join(changedKeys(pod.Labels, next.Labels), ", ")
		return fmt.Errorf("labels %s of pod %s/%s: %w", changed, pod.Namespace, pod.Name, err)
	}
	return nil
}

// Changes are what it writes to let a pod of a workload leave, and end.
func Changes(namespace, pod string) ([]engine.Change, error) {
	name := namespace + "/" + pod
	mark, err := json.Marshal(Mark{Labels: map[string]string{"…": "…"}})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", name, err)
	}
	label := map[string]any{"metadata": map[string]any{
		"labels":      map[string]any{v1alpha1.LabelRole: v1alpha1.RoleLeaving, "…": Gone},
		"annotations": map[string]any{v1alpha1.AnnotationLeaving: string(mark)},
	}}
	return []engine.Change{
		{Verb: "create", Object: "EndpointSlice " + namespace + "/…-leaving-…"},
		{Verb: "patch", Object: "Pod " + name, Body: label},
		{Verb: "delete", Object: "EndpointSlice " + namespace + "/…-leaving-…"},
		{Verb: "delete", Object: "Pod " + name},
	}, nil
}
