package freeze

import (
	"context"
	"fmt"
	"maps"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// UnavailableError says that the cluster, or the user's rights, do not allow a freeze.
type UnavailableError struct {
	Err error
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("services cannot be frozen: %v", e.Err) }
func (e *UnavailableError) Unwrap() error { return e.Err }

// ForeignError says that a name is taken by an object that is not replumb's.
type ForeignError struct {
	Object string
}

func (e *ForeignError) Error() string { return e.Object + " exists and does not belong to replumb" }

// Advice says what to do about the other object.
func (e *ForeignError) Advice() string {
	return "see whose " + e.Object + " is, and remove it if it is not needed; then run the same command again"
}

func unavailable(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsInvalid(err) {
		return &UnavailableError{Err: err}
	}
	return err
}

// Possible asks by dry run whether policy and binding can be created; else an UnavailableError or a
// ForeignError.
func Possible(ctx context.Context, c client.Client, migration string) error {
	policy, binding := Policy(migration)
	for _, o := range []client.Object{policy, binding} {
		if err := tryCreate(ctx, c, o); err != nil {
			return err
		}
	}
	_, err := present(ctx, c, Name)
	return unavailable(err)
}

func tryCreate(ctx context.Context, c client.Client, o client.Object) error {
	err := c.Create(ctx, o, client.DryRunAll, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return unavailable(err)
	}
	return nil
}

func objects(name string) []client.Object {
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}},
	}
}

func foreign(ctx context.Context, c client.Client, o client.Object) error {
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return fmt.Errorf("%s: %w", describe(c, o), err)
	}
	if o.GetLabels()[v1alpha1.LabelRole] != v1alpha1.RoleFreeze {
		return &ForeignError{Object: describe(c, o)}
	}
	return nil
}

func describe(c client.Client, o client.Object) string {
	kind := "object"
	if gvk, err := c.GroupVersionKindFor(o); err == nil {
		kind = strings.ToLower(gvk.Kind)
	}
	return kind + " " + o.GetName()
}

// Ensure creates or adjusts policy and binding. Listed Services stay listed.
func Ensure(ctx context.Context, c client.Client, migration string) error {
	policy, binding := Policy(migration)
	return ensureBoth(ctx, c, policy, binding, func(have *admissionv1.ValidatingAdmissionPolicy) admissionv1.ValidatingAdmissionPolicySpec {
		return policySpec(migration, lists(have))
	})
}

// ensureBoth gives an existing policy the spec that wanted makes for it; nil for that of policy.
func ensureBoth(
	ctx context.Context, c client.Client, policy *admissionv1.ValidatingAdmissionPolicy,
	binding *admissionv1.ValidatingAdmissionPolicyBinding,
	wanted func(have *admissionv1.ValidatingAdmissionPolicy) admissionv1.ValidatingAdmissionPolicySpec,
) error {
	err := ensure(ctx, c, policy, &admissionv1.ValidatingAdmissionPolicy{}, func(have *admissionv1.ValidatingAdmissionPolicy) bool {
		want := policy.Spec
		if wanted != nil {
			want = wanted(have)
		}
		same := equality.Semantic.DeepEqual(have.Spec, want)
		have.Spec = want
		return same
	})
	if err != nil {
		return unavailable(err)
	}
	err = ensure(ctx, c, binding, &admissionv1.ValidatingAdmissionPolicyBinding{},
		func(have *admissionv1.ValidatingAdmissionPolicyBinding) bool {
			same := equality.Semantic.DeepEqual(have.Spec, binding.Spec)
			have.Spec = binding.Spec
			return same
		})
	return unavailable(err)
}

// ensure creates want, or adjusts what is there; adjust reports whether that was right.
func ensure[T client.Object](ctx context.Context, c client.Client, want, have T, adjust func(T) bool) error {
	err := c.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		err = c.Create(ctx, want, client.FieldOwner(v1alpha1.FieldManager))
	case err != nil:
	case have.GetLabels()[v1alpha1.LabelRole] != v1alpha1.RoleFreeze:
		return &ForeignError{Object: describe(c, want)}
	case !have.GetDeletionTimestamp().IsZero():
		return engine.NotYet("%s is being deleted", describe(c, want))
	default:
		same := maps.Equal(have.GetLabels(), want.GetLabels())
		have.SetLabels(want.GetLabels())
		if adjust(have) && same {
			return nil
		}
		err = c.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", describe(c, want), err)
	}
	return nil
}

func remove(ctx context.Context, c client.Client, name string) error {
	for _, o := range objects(name) {
		what := describe(c, o)
		if err := foreign(ctx, c, o); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return err
		}
		uid := o.GetUID()
		if err := client.IgnoreNotFound(c.Delete(ctx, o, client.Preconditions{UID: &uid})); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

type parts struct {
	binding, policy bool
}

func present(ctx context.Context, c client.Client, name string) (parts, error) {
	var found parts
	for i, there := range []*bool{&found.binding, &found.policy} {
		err := foreign(ctx, c, objects(name)[i])
		if client.IgnoreNotFound(err) != nil {
			return parts{}, err
		}
		*there = err == nil
	}
	return found, nil
}

// Prove reports whether the answering API server enforces the freeze, which follows policies with a
// delay: by the dry run of a change to the Service kubernetes.
func Prove(ctx context.Context, c client.Client) (bool, error) { return prove(ctx, c, Name, prober) }

func prove(ctx context.Context, c client.Client, name, prober string) (bool, error) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"replumb.dev/freeze-probe":"true"}}}`))
	err := c.Patch(ctx, svc, patch, client.DryRunAll, client.FieldOwner(prober))
	if err != nil && !denied(err, name) {
		return false, fmt.Errorf("asking whether policy %s is enforced: %w", name, err)
	}
	return err != nil, nil
}

func denied(err error, name string) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+name+"'")
}

// Mark lists exactly these Services as in flight, in one write if it changes anything, and does
// nothing without a freeze. API servers follow within a second or two.
func Mark(ctx context.Context, c client.Client, migration string, keys []types.NamespacedName) error {
	have := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: Name}}
	err := foreign(ctx, c, have)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	want := policySpec(migration, listsOf(keys))
	if equality.Semantic.DeepEqual(have.Spec, want) {
		return nil
	}
	have.Spec = want
	if err := c.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("listing services in validatingadmissionpolicy %s: %w", Name, err)
	}
	return nil
}

// Clear lists no Service as in flight. The annotation of a migration still counts.
func Clear(ctx context.Context, c client.Client, migration string) error {
	return Mark(ctx, c, migration, nil)
}
