package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// PrivilegeStep lets privileged pods run in replumb's namespace, where Pod Security would refuse
// them. Its Undo restores the labels; audit and warnings stay.
type PrivilegeStep struct {
	Cluster   *cluster.Cluster
	Migration string
	// Name is the ID. Default: secure/pod-security.
	Name string
}

var _ engine.Undoer = (*PrivilegeStep)(nil)

const (
	enforceLabel = "pod-security.kubernetes.io/enforce"
	privileged   = "privileged"
)

func podSecurity() map[string]string {
	return map[string]string{
		enforceLabel: privileged, "pod-security.kubernetes.io/audit": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	}
}

func asSet(ns *corev1.Namespace) bool {
	for key, value := range podSecurity() {
		if ns.Labels[key] != value {
			return false
		}
	}
	return true
}

func (*PrivilegeStep) Role() engine.StepRole { return engine.RoleOwn }

func (s *PrivilegeStep) ID() string { return cmp.Or(s.Name, "secure/pod-security") }

func (*PrivilegeStep) Title() string {
	return "Let replumb run privileged pods in namespace " + v1alpha1.SystemNamespace
}

func (s *PrivilegeStep) get(ctx context.Context) (*corev1.Namespace, error) {
	return (&NamespaceStep{Cluster: s.Cluster}).get(ctx)
}

func (s *PrivilegeStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case ns != nil && asSet(ns) && ns.Annotations[v1alpha1.AnnotationPodSecurity] != "":
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *PrivilegeStep) Do(ctx context.Context) error {
	return change(ctx, s.Cluster, func(ns *corev1.Namespace) error {
		if ns.Annotations[v1alpha1.AnnotationPodSecurity] == "" {
			before := map[string]string{}
			for key := range podSecurity() {
				if value, is := ns.Labels[key]; is {
					before[key] = value
				}
			}
			body, err := json.Marshal(before)
			if err != nil {
				return err
			}
			metav1.SetMetaDataAnnotation(&ns.ObjectMeta, v1alpha1.AnnotationPodSecurity, string(body))
		}
		for key, value := range podSecurity() {
			metav1.SetMetaDataLabel(&ns.ObjectMeta, key, value)
		}
		return nil
	})
}

func change(ctx context.Context, c *cluster.Cluster, do func(*corev1.Namespace) error) error {
	ns := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%w", err)
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	was := ns.DeepCopy()
	if err := do(ns); err != nil {
		return fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	err = c.Patch(ctx, ns, patch, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsConflict(err) {
		return engine.NotYet("%w", err)
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	return nil
}

func (s *PrivilegeStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("namespace %s has another label %s", v1alpha1.SystemNamespace, enforceLabel)
	}
	return err
}

func (*PrivilegeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{
		Verb: "patch", Object: "Namespace " + v1alpha1.SystemNamespace,
		Body: map[string]any{"metadata": map[string]any{
			"labels": podSecurity(), "annotations": map[string]string{v1alpha1.AnnotationPodSecurity: "what it was before"},
		}},
	}}, nil
}

func (s *PrivilegeStep) Undo() engine.Step { return &giveBackStep{of: s} }

// giveBackStep restores the labels, unless another migration still needs them as they are.
type giveBackStep struct{ of *PrivilegeStep }

var _ engine.Previewer = (*giveBackStep)(nil)

func (*giveBackStep) ID() string            { return "tidy/pod-security" }
func (*giveBackStep) Role() engine.StepRole { return engine.RoleOwn }
func (*giveBackStep) Title() string {
	return "Restore Pod Security in namespace " + v1alpha1.SystemNamespace
}

func (s *giveBackStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.of.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case ns == nil || !ns.DeletionTimestamp.IsZero() || ns.Annotations[v1alpha1.AnnotationPodSecurity] == "":
		return engine.Done, nil
	}
	all, err := List(ctx, s.of.Cluster)
	if err != nil {
		return engine.Unknown, err
	}
	for i := range all {
		if m := &all[i]; m.Name != s.of.Migration && underWay(m) {
			return engine.Done, nil
		}
	}
	return engine.Pending, nil
}

func (s *giveBackStep) Do(ctx context.Context) error {
	return change(ctx, s.of.Cluster, func(ns *corev1.Namespace) error {
		before := map[string]string{}
		if err := json.Unmarshal([]byte(ns.Annotations[v1alpha1.AnnotationPodSecurity]), &before); err != nil {
			return fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationPodSecurity, err)
		}
		for key, value := range podSecurity() {
			if ns.Labels[key] != value {
				continue
			}
			if delete(ns.Labels, key); before[key] != "" {
				metav1.SetMetaDataLabel(&ns.ObjectMeta, key, before[key])
			}
		}
		delete(ns.Annotations, v1alpha1.AnnotationPodSecurity)
		return nil
	})
}

func (s *giveBackStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("namespace %s has not got its labels back", v1alpha1.SystemNamespace)
	}
	return err
}

func (*giveBackStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{
		Verb: "patch", Object: "Namespace " + v1alpha1.SystemNamespace,
		Body: map[string]any{"metadata": map[string]any{"labels": "those of Pod Security as before"}},
	}}, nil
}
