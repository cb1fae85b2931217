package objectsync

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

type what int

const (
	written what = iota
	same
	kept
	leftOutOfIt
	failed
)

type outcome struct {
	what  what
	err   *ObjectError
	again bool
}

func failure(err *ObjectError) outcome { return outcome{what: failed, err: err, again: err.again} }

// one copies one object, which it uses up. e is what the target has of that name; nil for nothing.
func (c *Copier) one(ctx context.Context, k objects.ResourceKind, o *unstructured.Unstructured, e *entry) outcome {
	if c.Rules.WhyNot(k, o) != "" {
		return outcome{what: leftOutOfIt}
	}
	if e != nil {
		e.seen = true
	}
	ref := objects.RefOf(k, o)
	taken, err := c.Rules.Convert(k, o)
	if err != nil {
		return failure(Unfit(ref, err))
	}
	policy := c.Rules.Existing()
	switch {
	case e == nil:
		return c.write(ctx, k, taken, false, !copyrules.Adopts(k, ref.Key()))
	case e.owned:
		copied := e.copied != "" && e.copied == taken.GetAnnotations()[v1alpha1.AnnotationCopied]
		if copied && e.asleep == copyrules.IsAsleep(taken) && !c.Rewrite {
			return outcome{what: same}
		}
		return c.write(ctx, k, taken, true, false)
	case copyrules.Adopts(k, ref.Key()):
		return c.write(ctx, k, taken, policy == v1alpha1.ExistingOverwrite, false)
	case policy == v1alpha1.ExistingKeep:
		return outcome{what: kept}
	case policy == v1alpha1.ExistingOverwrite:
		return c.write(ctx, k, taken, true, false)
	}
	return c.refuse(ctx, k, taken)
}

// refuse leaves an object of someone else's alone. It is no trouble if it is what would be copied.
func (c *Copier) refuse(ctx context.Context, k objects.ResourceKind, taken *unstructured.Unstructured) outcome {
	ref := objects.RefOf(k, taken)
	have, err := c.Target.Read(ctx, k, ref.Key())
	if err != nil {
		return failure(trouble(ref, "reading", err))
	}
	diffs := c.Rules.Differences(k, taken, have)
	if len(diffs) == 0 {
		return outcome{what: kept}
	}
	return failure(exists(ref, fmt.Sprintf("the target has another of that name, which replumb did not make; it differs in %s",
		diffs[0].Path)))
}

func exists(ref objects.Ref, problem string) *ObjectError {
	return &ObjectError{
		Ref: ref, Verb: "copying", Reason: ReasonExists, Problem: problem,
		Hint: "remove it there, leave it out here, or say what to do by spec.mirror.copy.existing",
	}
}

// write applies a copy. fresh says that the target had none: one that was created since is kept.
func (c *Copier) write(ctx context.Context, k objects.ResourceKind, taken *unstructured.Unstructured, force, fresh bool) outcome {
	ref := objects.RefOf(k, taken)
	body, err := json.Marshal(taken.Object)
	if err != nil {
		return failure(trouble(ref, "copying", err))
	}
	have, err := c.Target.apply(ctx, k, ref.Key(), body, force)
	if err != nil {
		return failure(trouble(ref, "copying", err))
	}
	if fresh && shared(have) {
		return c.giveBack(ctx, k, taken)
	}
	return outcome{what: written}
}

func shared(o metav1.Object) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager != v1alpha1.FieldManager {
			return true
		}
	}
	return false
}

// giveBack withdraws a write to a foreign object, by owning nothing of it any more.
func (c *Copier) giveBack(ctx context.Context, k objects.ResourceKind, taken *unstructured.Unstructured) outcome {
	ref := objects.RefOf(k, taken)
	nothing := &unstructured.Unstructured{Object: map[string]any{}}
	nothing.SetAPIVersion(taken.GetAPIVersion())
	nothing.SetKind(taken.GetKind())
	nothing.SetName(taken.GetName())
	nothing.SetNamespace(taken.GetNamespace())
	body, err := json.Marshal(nothing.Object)
	if err == nil {
		_, err = c.Target.apply(ctx, k, ref.Key(), body, false)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return failure(trouble(ref, "giving back", err))
	}
	return failure(exists(ref, "someone else made one of that name in the target just before"))
}
