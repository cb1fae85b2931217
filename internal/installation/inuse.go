package installation

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/gitops"
)

// InUseError says what in the cluster still needs replumb.
type InUseError struct {
	Reasons []string
	// UnderWay is a Migration that is; empty if there is none.
	UnderWay string
}

func (e *InUseError) Error() string {
	return "replumb is still needed in this cluster:\n" + strings.Join(e.Reasons, "\n")
}

func (*InUseError) ExitCode() int { return fault.ExitBlocked }

func (e *InUseError) Advice() string {
	if e.UnderWay != "" {
		return fmt.Sprintf("replumb finish %[1]s, or replumb rollback %[1]s, first; nothing was changed", e.UnderWay)
	}
	return "run the command again with which the migration that left it was under way: it tidies up; nothing was changed"
}

// over reports whether a Migration needs nothing any more, or has not begun.
func over(m *v1alpha1.Migration) bool { return m.Status.Phase == "" || m.Status.Phase.Over() }

// inUse fails with an *InUseError as long as a migration is under way or has left something. It
// returns the Migrations that are over, which go with their definition.
func (r *Remover) inUse(ctx context.Context) ([]v1alpha1.Migration, error) {
	all, err := migration.List(ctx, r.Cluster)
	if err != nil {
		return nil, err
	}
	found := &InUseError{}
	for i := range all {
		if m := &all[i]; !over(m) {
			found.Reasons = append(found.Reasons, fmt.Sprintf("migration %s is under way: %s", m.Name, m.Status.Phase))
			found.UnderWay = m.Name
		}
	}
	for _, look := range []func(context.Context) (string, error){r.bridges, r.holds, r.follower, r.freezes} {
		reason, err := look(ctx)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			found.Reasons = append(found.Reasons, reason)
		}
	}
	if len(found.Reasons) > 0 {
		return nil, found
	}
	return all, nil
}

func (r *Remover) bridges(ctx context.Context) (string, error) {
	all := &corev1.ServiceList{}
	if err := r.Cluster.List(ctx, all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleBridge}); err != nil {
		return "", fmt.Errorf("listing bridges: %w", err)
	}
	if len(all.Items) == 0 {
		return "", nil
	}
	first := client.ObjectKeyFromObject(&all.Items[0])
	return fmt.Sprintf("%s old addresses answering, service %s among them",
		english.Plural(len(all.Items), "bridge keeps", "bridges keep"), first), nil
}

// holds are addresses that are kept for Services.
func (r *Remover) holds(ctx context.Context) (string, error) {
	all := &networkingv1.IPAddressList{}
	if err := r.Cluster.List(ctx, all, client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleHold}); err != nil {
		return "", fmt.Errorf("listing reserved addresses: %w", err)
	}
	if len(all.Items) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s reserved for Services, ipaddress %s among them",
		english.Plural(len(all.Items), "address is", "addresses are"), all.Items[0].Name), nil
}

func (r *Remover) follower(ctx context.Context) (string, error) {
	key := client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: overlapset.Name}
	there, err := r.there(ctx, &appsv1.Deployment{}, key)
	if err != nil || !there {
		return "", err
	}
	return fmt.Sprintf("deployment %s keeps bridges in step", key), nil
}

func (r *Remover) freezes(ctx context.Context) (string, error) {
	for _, name := range []string{freeze.Name, freeze.DeploysName, freeze.GuardName} {
		there, err := r.there(ctx, &admissionv1.ValidatingAdmissionPolicy{}, client.ObjectKey{Name: name})
		if err != nil {
			return "", err
		}
		if there {
			return fmt.Sprintf("validatingadmissionpolicy %s keeps others from what a migration needs", name), nil
		}
	}
	if of, err := gitops.Holder(ctx, r.Cluster); err != nil || of != "" {
		return fmt.Sprintf("migration %s has suspended what Argo CD and Flux reconcile", of), err
	}
	return "", nil
}

// there reports whether an object exists, by its metadata alone.
func (r *Remover) there(ctx context.Context, o client.Object, key client.ObjectKey) (bool, error) {
	kind, err := r.Cluster.GroupVersionKindFor(o)
	if err != nil {
		return false, err
	}
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(kind)
	name := strings.ToLower(kind.Kind) + " " + strings.TrimPrefix(key.String(), "/")
	return workload.Get(ctx, r.Cluster, name, key, have)
}
