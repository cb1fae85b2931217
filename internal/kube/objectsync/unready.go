package objectsync

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// Unready are the copied workloads without all pods ready, and why. Suspended ones are ready.
func (c *Copier) Unready(ctx context.Context) ([]objects.Note, error) {
	var notes []objects.Note
	for _, list := range []client.ObjectList{
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &corev1.PodList{},
	} {
		some, err := c.unready(ctx, list)
		if err != nil {
			return nil, err
		}
		notes = append(notes, some...)
	}
	return notes, nil
}

func (c *Copier) unready(ctx context.Context, list client.ObjectList) (notes []objects.Note, err error) {
	mine := client.MatchingLabels{v1alpha1.LabelMirror: c.Rules.Migration()}
	for more := true; more; more = list.GetContinue() != "" {
		if err := c.Target.List(ctx, list, mine, client.Limit(pageSize), client.Continue(list.GetContinue())); err != nil {
			return nil, fmt.Errorf("reading workloads of the target: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			ref, why, err := c.missing(ctx, item)
			if err == nil && why != "" {
				notes = append(notes, objects.Note{Ref: ref, What: why})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return notes, nil
}

func (c *Copier) missing(ctx context.Context, item runtime.Object) (ref objects.Ref, why string, err error) {
	at := func(resource string, o client.Object) objects.Ref {
		return objects.Ref{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()}
	}
	switch o := item.(type) {
	case *corev1.Pod:
		_, why := readiness.Pod(o)
		return at("pods", o), why, nil
	case *appsv1.Deployment:
		ref = at("deployments.apps", o)
		why, err = c.shortOf(ctx, o, o.Spec.Selector)
	case *appsv1.StatefulSet:
		ref = at("statefulsets.apps", o)
		why, err = c.shortOf(ctx, o, o.Spec.Selector)
	case *appsv1.DaemonSet:
		ref = at("daemonsets.apps", o)
		why, err = c.shortOf(ctx, o, o.Spec.Selector)
	}
	return ref, why, err
}

func (c *Copier) shortOf(ctx context.Context, o client.Object, of *metav1.LabelSelector) (string, error) {
	complete, why := readiness.Workload(o)
	if complete {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return why, nil //nolint:nilerr // the API server would not have taken it; the count is what there is to say
	}
	pods := &corev1.PodList{}
	if err := c.Target.List(ctx, pods, client.InNamespace(o.GetNamespace()),
		client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return "", fmt.Errorf("reading pods of %s: %w", o.GetName(), err)
	}
	for i := range pods.Items {
		if ready, cause := readiness.Pod(&pods.Items[i]); !ready {
			return why + ": pod " + pods.Items[i].Name + ": " + cause, nil
		}
	}
	return why, nil
}
