package objectsync

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/replumb/replumb/api/v1alpha1"
)

// sleepers are the kinds that have singletons.
func sleepers() []Kind {
	return []Kind{
		{Group: "batch", Version: "v1", Kind: "CronJob", Resource: "cronjobs", Namespaced: true},
		{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespaced: true},
		{Group: "apps", Version: "v1", Kind: "StatefulSet", Resource: "statefulsets", Namespaced: true},
	}
}

// Sleep keeps the singletons of a side from running: CronJobs are suspended, Deployments and StatefulSets get no pods. What they
// had is kept in an annotation. It returns those that it changed; those that sleep already are left alone. Of the target only
// copies are touched, of the source only what the rules take.
func (r *Rules) Sleep(ctx context.Context, s *Side) ([]Ref, error) {
	return r.singletonsOf(ctx, s, func(sl *sleep, o *unstructured.Unstructured) map[string]any {
		if sl.asleep(o) {
			return nil
		}
		return sl.patch(sl.value, fmt.Sprint(sl.original(o)))
	})
}

// Wake gives the singletons of a side back what they had before Sleep, or before they were copied. It returns those that it
// changed.
func (r *Rules) Wake(ctx context.Context, s *Side) ([]Ref, error) {
	return r.singletonsOf(ctx, s, func(sl *sleep, o *unstructured.Unstructured) map[string]any {
		if _, marked := o.GetAnnotations()[sl.annotation]; !marked {
			return nil
		}
		if !sl.asleep(o) { // someone has woken it
			return sl.patch(inside(o.Object, "spec")[sl.field], nil)
		}
		return sl.patch(sl.original(o), nil)
	})
}

// Asleep are the singletons of a side that Sleep, or the copy, keeps from running, and Running are the others. Both are those that
// Sleep and Wake would look at.
func (r *Rules) Asleep(ctx context.Context, s *Side) (asleep, running []Ref, err error) {
	for _, k := range sleepers() {
		err := s.each(ctx, k, func(o *unstructured.Unstructured) error {
			switch sl := r.sleepOf(k, o); {
			case sl == nil || !r.concerns(k, o):
			case sl.asleep(o):
				asleep = append(asleep, refOf(k, o))
			default:
				running = append(running, refOf(k, o))
			}
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", k, err)
		}
	}
	return asleep, running, nil
}

// concerns reports whether an object is a copy, or would be copied.
func (r *Rules) concerns(k Kind, o *unstructured.Unstructured) bool {
	return r.owns(o) || r.whyNot(k, o) == ""
}

// patch sets the field, and the annotation; nil takes that away.
func (s *sleep) patch(value, annotation any) map[string]any {
	return map[string]any{
		"spec":     map[string]any{s.field: value},
		"metadata": map[string]any{"annotations": map[string]any{s.annotation: annotation}},
	}
}

func (r *Rules) singletonsOf(
	ctx context.Context, s *Side, change func(*sleep, *unstructured.Unstructured) map[string]any,
) (changed []Ref, err error) {
	for _, k := range sleepers() {
		var due []Ref
		err := s.each(ctx, k, func(o *unstructured.Unstructured) error {
			if sl := r.sleepOf(k, o); sl != nil && r.concerns(k, o) && change(sl, o) != nil {
				due = append(due, refOf(k, o))
			}
			return nil
		})
		if err != nil {
			return changed, fmt.Errorf("reading %s: %w", k, err)
		}
		for _, ref := range due {
			if err := r.changeOne(ctx, s, k, ref, change); err != nil {
				return changed, fmt.Errorf("changing %s: %w", ref, err)
			}
			changed = append(changed, ref)
		}
	}
	return changed, nil
}

// changeOne writes against the version that was looked at: what is kept in the annotation must be what was there.
func (r *Rules) changeOne(
	ctx context.Context, s *Side, k Kind, ref Ref, change func(*sleep, *unstructured.Unstructured) map[string]any,
) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := s.get(ctx, k, ref.key())
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		sl := r.sleepOf(k, o)
		if sl == nil {
			return nil
		}
		patch := change(sl, o)
		if patch == nil {
			return nil
		}
		asMap(patch["metadata"])["resourceVersion"] = o.GetResourceVersion()
		body, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		_, err = s.metaOf(k, ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: v1alpha1.FieldManager})
		return err
	})
}
