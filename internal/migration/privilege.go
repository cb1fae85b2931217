package migration

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// PrivilegeStep lets pods that may do much run in replumb's namespace, where Pod Security would refuse them.
type PrivilegeStep struct {
	Cluster *cluster.Cluster
	// Name is the ID. Default: secure/pod-security.
	Name string
}

const (
	enforceLabel = "pod-security.kubernetes.io/enforce"
	privileged   = "privileged"
)

// Role implements engine.Cast.
func (*PrivilegeStep) Role() engine.Role { return engine.RoleOwn }

// ID implements engine.Step.
func (s *PrivilegeStep) ID() string { return cmp.Or(s.Name, "secure/pod-security") }

// Title implements engine.Step.
func (*PrivilegeStep) Title() string {
	return "Let replumb run privileged pods in namespace " + v1alpha1.SystemNamespace
}

// get is the namespace; nil if there is none.
func (s *PrivilegeStep) get(ctx context.Context) (*corev1.Namespace, error) {
	return (&NamespaceStep{Cluster: s.Cluster}).get(ctx)
}

// State implements engine.Step.
func (s *PrivilegeStep) State(ctx context.Context) (engine.State, error) {
	ns, err := s.get(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case ns != nil && ns.Labels[enforceLabel] == privileged:
		return engine.Done, nil
	}
	return engine.Pending, nil
}

// Do implements engine.Step.
func (s *PrivilegeStep) Do(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
	patch := []byte(`{"metadata":{"labels":{"` + enforceLabel + `":"` + privileged + `"}}}`)
	err := s.Cluster.Patch(ctx, ns, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) {
		return engine.NotYet("%w", err)
	}
	if err != nil {
		return fmt.Errorf("namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	return nil
}

// Verify implements engine.Step.
func (s *PrivilegeStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("namespace %s does not say so", v1alpha1.SystemNamespace)
	}
	return err
}

// Preview implements engine.Previewer.
func (*PrivilegeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{
		Verb: "patch", Object: "Namespace " + v1alpha1.SystemNamespace,
		Body: map[string]any{"metadata": map[string]any{"labels": map[string]string{enforceLabel: privileged}}},
	}}, nil
}
