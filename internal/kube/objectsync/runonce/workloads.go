// Package runonce has workloads that must not run in both clusters run in one of them.
package runonce

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
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Workloads are the singletons of one side.
type Workloads struct {
	Rules *copyrules.Rules
	Side  *objectsync.Side
}

func sleepers() []objects.ResourceKind {
	return []objects.ResourceKind{
		cronJobs(),
		{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespaced: true},
		{Group: "apps", Version: "v1", Kind: "StatefulSet", Resource: "statefulsets", Namespaced: true},
	}
}

// Sleep suspends the singletons of the side, and keeps what they had in an annotation. It returns
// those that it changed. Of the target only copies are touched, of the source only what the rules
// take.
func (w Workloads) Sleep(ctx context.Context) ([]objects.Ref, error) {
	return w.change(ctx, (*copyrules.Sleep).PutToSleep, nil)
}

// Wake gives the singletons of the side back what they had, CronJobs once they know what the other
// side has run. It returns those that it changed.
func (w Workloads) Wake(ctx context.Context, other *objectsync.Side) ([]objects.Ref, error) {
	return w.change(ctx, (*copyrules.Sleep).Wake, func(k objects.ResourceKind, ref objects.Ref) error {
		if !k.Is("batch", "CronJob") {
			return nil
		}
		return w.learnRuns(ctx, ref, other)
	})
}

// Asleep are the singletons of the side that replumb keeps from running, Running the others.
func (w Workloads) Asleep(ctx context.Context) (asleep, running []objects.Ref, err error) {
	for _, k := range sleepers() {
		err := w.Side.Each(ctx, k, func(o *unstructured.Unstructured) error {
			switch sl := w.Rules.SleepOf(k, o); {
			case sl == nil || !w.Rules.Concerns(k, o):
			case sl.Asleep(o):
				asleep = append(asleep, objects.RefOf(k, o))
			default:
				running = append(running, objects.RefOf(k, o))
			}
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", k, err)
		}
	}
	return asleep, running, nil
}

// change changes those that change has a patch for. before, if there is one, comes first.
func (w Workloads) change(
	ctx context.Context, change func(*copyrules.Sleep, *unstructured.Unstructured) map[string]any, before func(objects.ResourceKind, objects.Ref) error,
) (changed []objects.Ref, err error) {
	for _, k := range sleepers() {
		var due []objects.Ref
		err := w.Side.Each(ctx, k, func(o *unstructured.Unstructured) error {
			if sl := w.Rules.SleepOf(k, o); sl != nil && w.Rules.Concerns(k, o) && change(sl, o) != nil {
				due = append(due, objects.RefOf(k, o))
			}
			return nil
		})
		if err != nil {
			return changed, fmt.Errorf("reading %s: %w", k, err)
		}
		for _, ref := range due {
			if before != nil {
				if err := before(k, ref); err != nil {
					return changed, fmt.Errorf("changing %s: %w", ref, err)
				}
			}
			if err := w.changeOne(ctx, k, ref, change); err != nil {
				return changed, fmt.Errorf("changing %s: %w", ref, err)
			}
			changed = append(changed, ref)
		}
	}
	return changed, nil
}

// changeOne writes against the version that was read.
func (w Workloads) changeOne(
	ctx context.Context, k objects.ResourceKind, ref objects.Ref, change func(*copyrules.Sleep, *unstructured.Unstructured) map[string]any,
) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := w.Side.Read(ctx, k, ref.Key())
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		sl := w.Rules.SleepOf(k, o)
		if sl == nil {
			return nil
		}
		patch := change(sl, o)
		if patch == nil {
			return nil
		}
		objects.Map(patch["metadata"])["resourceVersion"] = o.GetResourceVersion()
		body, err := json.Marshal(patch)
		if err != nil {
			return err
		}
		_, err = w.Side.MetaOf(k, ref.Namespace).Patch(ctx, ref.Name, types.MergePatchType, body,
			metav1.PatchOptions{FieldManager: v1alpha1.FieldManager})
		return err
	})
}
