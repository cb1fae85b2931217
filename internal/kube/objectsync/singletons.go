package objectsync

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

func sleepers() []ResourceKind {
	return []ResourceKind{
		cronJobs(),
		{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Namespaced: true},
		{Group: "apps", Version: "v1", Kind: "StatefulSet", Resource: "statefulsets", Namespaced: true},
	}
}

// Sleep suspends the singletons of a side, and keeps what they had in an annotation. It returns
// those that it changed. Of the target only copies are touched, of the source only what the rules
// take.
func (r *CopyRules) Sleep(ctx context.Context, s *Side) ([]Ref, error) {
	return r.singletonsOf(ctx, s, func(sl *sleep, o *unstructured.Unstructured) map[string]any {
		if sl.asleep(o) {
			return nil
		}
		return sl.patch(sl.value, fmt.Sprint(sl.original(o)))
	}, nil)
}

// Wake gives the singletons of a side back what they had, CronJobs once they know what the other
// side has run. It returns those that it changed.
func (r *CopyRules) Wake(ctx context.Context, s, other *Side) ([]Ref, error) {
	return r.singletonsOf(ctx, s, func(sl *sleep, o *unstructured.Unstructured) map[string]any {
		if _, marked := o.GetAnnotations()[sl.annotation]; !marked {
			return nil
		}
		if !sl.asleep(o) { // someone has woken it
			return sl.patch(inside(o.Object, "spec")[sl.field], nil)
		}
		return sl.patch(sl.original(o), nil)
	}, func(k ResourceKind, ref Ref) error {
		if !k.is("batch", "CronJob") {
			return nil
		}
		return s.learnRuns(ctx, ref, other)
	})
}

// Asleep are the singletons of a side that replumb keeps from running, Running the others.
func (r *CopyRules) Asleep(ctx context.Context, s *Side) (asleep, running []Ref, err error) {
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

func (r *CopyRules) concerns(k ResourceKind, o *unstructured.Unstructured) bool {
	return r.owns(o) || r.whyNot(k, o) == ""
}

func (s *sleep) patch(value, annotation any) map[string]any {
	notes := map[string]any{s.annotation: annotation}
	if s.settles {
		notes[v1alpha1.AnnotationSettled] = nil
	}
	return map[string]any{"spec": map[string]any{s.field: value}, "metadata": map[string]any{"annotations": notes}}
}

// singletonsOf changes those that change has a patch for. before, if there is one, comes first.
func (r *CopyRules) singletonsOf(
	ctx context.Context, s *Side, change func(*sleep, *unstructured.Unstructured) map[string]any, before func(ResourceKind, Ref) error,
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
			if before != nil {
				if err := before(k, ref); err != nil {
					return changed, fmt.Errorf("changing %s: %w", ref, err)
				}
			}
			if err := r.changeOne(ctx, s, k, ref, change); err != nil {
				return changed, fmt.Errorf("changing %s: %w", ref, err)
			}
			changed = append(changed, ref)
		}
	}
	return changed, nil
}

// changeOne writes against the version that was read.
func (r *CopyRules) changeOne(
	ctx context.Context, s *Side, k ResourceKind, ref Ref, change func(*sleep, *unstructured.Unstructured) map[string]any,
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

type singleton struct{ kind, namespace, name string }

func readSingletons(workloads []string) (map[singleton]bool, error) {
	all := map[singleton]bool{}
	for i, w := range workloads {
		parts := strings.Split(w, "/")
		kinds := map[string]string{
			"deployment": "Deployment", "deployments": "Deployment", "deployments.apps": "Deployment",
			"statefulset": "StatefulSet", "statefulsets": "StatefulSet", "statefulsets.apps": "StatefulSet",
		}
		if len(parts) != 3 || kinds[strings.ToLower(parts[0])] == "" || parts[1] == "" || parts[2] == "" {
			return nil, &spec.Error{
				Field: fmt.Sprintf("spec.mirror.singletons.workloads[%d]", i), Problem: fmt.Sprintf("%q is not kind/namespace/name", w),
				Hint: "write it such as deployment/shop/worker; Deployments and StatefulSets can be named",
			}
		}
		all[singleton{kinds[strings.ToLower(parts[0])], parts[1], parts[2]}] = true
	}
	return all, nil
}

// sleep is the field that keeps a singleton from running, and the annotation with its former value.
type sleep struct {
	field      string
	value      any
	otherwise  any
	annotation string
	parse      func(string) (any, error)
	// settles says that a controller may act once more on what it knew before.
	settles bool
}

// sleepOf is nil for what may run in both clusters.
func (r *CopyRules) sleepOf(k ResourceKind, o *unstructured.Unstructured) *sleep {
	once := o.GetAnnotations()[v1alpha1.AnnotationRunOnce] == "true"
	switch {
	case k.is("batch", "CronJob") && (once || r.options.Singletons.CronJobs == v1alpha1.CronJobsSuspend):
		return &sleep{
			field: "suspend", value: true, otherwise: false, annotation: v1alpha1.AnnotationSuspend, settles: true,
			parse: func(s string) (any, error) { return strconv.ParseBool(s) },
		}
	case k.is("apps", "Deployment") || k.is("apps", "StatefulSet"):
		if once || r.singletons[singleton{k.Kind, o.GetNamespace(), o.GetName()}] {
			return &sleep{
				field: "replicas", value: int64(0), otherwise: int64(1), annotation: v1alpha1.AnnotationReplicas,
				parse: func(s string) (any, error) { return strconv.ParseInt(s, 10, 32) },
			}
		}
	}
	return nil
}

func (s *sleep) original(o *unstructured.Unstructured) any {
	if text, ok := o.GetAnnotations()[s.annotation]; ok {
		if v, err := s.parse(text); err == nil {
			return v
		}
	}
	if v, ok := inside(o.Object, "spec")[s.field]; ok {
		return v
	}
	return s.otherwise
}

func (s *sleep) asleep(o *unstructured.Unstructured) bool {
	_, marked := o.GetAnnotations()[s.annotation]
	return marked && inside(o.Object, "spec")[s.field] == s.value
}

// isAsleep goes by what Sleep leaves on a singleton.
func isAsleep(o metav1.Object) bool {
	notes := o.GetAnnotations()
	_, suspended := notes[v1alpha1.AnnotationSuspend]
	_, scaled := notes[v1alpha1.AnnotationReplicas]
	return suspended || scaled
}

// suspend keeps copies of singletons from running until names lead to them.
func (r *CopyRules) suspend(k ResourceKind, o *unstructured.Unstructured) {
	s := r.sleepOf(k, o)
	if s == nil {
		return
	}
	original := s.original(o)
	within := inside(o.Object, "spec")
	if within == nil {
		return
	}
	if r.options.Awake {
		within[s.field] = original
		annotations := o.GetAnnotations()
		delete(annotations, s.annotation)
		setOrDrop(o, "annotations", annotations)
		return
	}
	within[s.field] = s.value
	setAnnotation(o, s.annotation, fmt.Sprint(original))
	if s.settles { // it has never run
		setAnnotation(o, v1alpha1.AnnotationSettled, "true")
	}
}
