package installation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
)

// Remover takes replumb out of a cluster.
type Remover struct {
	Cluster *cluster.Cluster
	Now     func() time.Time
}

// Goes fails with an *InUseError as long as replumb is needed. Otherwise it returns the Migrations
// that go beside the operator, a line each. It writes nothing.
func (r *Remover) Goes(ctx context.Context) ([]string, error) {
	all, err := r.inUse(ctx)
	var lines []string
	for i := range all {
		phase := string(all[i].Status.Phase)
		if phase == "" {
			phase = "not begun"
		}
		lines = append(lines, fmt.Sprintf("migration %s (%s)", all[i].Name, phase))
	}
	return lines, err
}

// Run removes all that install makes, the operator first; no migration can begin meanwhile. It
// fails as Goes does, and namespaces that are not empty stay.
func (r *Remover) Run(ctx context.Context, runner *engine.Runner) error {
	now := r.Now
	if now == nil {
		now = time.Now
	}
	lock := &migration.Keeper{Client: r.Cluster, Now: now}
	return lock.Locked(ctx, "uninstall", func(ctx context.Context) error {
		if _, err := r.inUse(ctx); err != nil {
			return err
		}
		plan, err := r.plan()
		if err != nil {
			return err
		}
		return runner.Run(ctx, plan)
	})
}

func (r *Remover) plan() (*engine.Plan, error) {
	everything := Options{Scope: Everything, Image: pull.Image{Name: "any"}, Replicas: Replicas, Purposes: access.Purposes()}
	parts, err := sections(everything)
	if err != nil {
		return nil, err
	}
	objects := map[string][]*unstructured.Unstructured{}
	for _, p := range parts {
		objects[p.name] = p.objects
	}
	plan := &engine.Plan{Name: "uninstall"}
	for _, phase := range []struct {
		name, title string
		steps       []engine.Step
	}{
		{"operator", "Stop the operator", []engine.Step{r.remove("operator", "Remove the operator", objects["operator"]), r.stopped()}},
		{"rights", "Take rights away", []engine.Step{
			r.remove("rights", "Remove the rights of the operator", objects["rights"]),
			r.unbind(), r.remove("roles", "Remove the roles of users", objects["roles"]),
		}},
		{"definitions", "Remove the definitions", []engine.Step{
			r.remove("guard", "Let definitions be replaced", objects["guard"]),
			r.remove("definitions", "Remove the definitions, and with them all Migrations", objects["definitions"]),
		}},
		{"namespaces", "Remove the namespaces", []engine.Step{r.vacate(v1alpha1.SystemNamespace), r.vacate(v1alpha1.JournalNamespace)}},
	} {
		plan.Phases = append(plan.Phases, engine.Phase{
			Name: phase.name, Title: phase.title, Groups: engine.InOrder(phase.steps...), Own: true,
		})
	}
	return plan, nil
}

func (r *Remover) remove(name, title string, objects []*unstructured.Unstructured) engine.Step {
	backwards := slices.Clone(objects)
	slices.Reverse(backwards)
	return r.removal(name+"/remove", title, func(ctx context.Context) ([]client.Object, error) {
		return workload.Left(ctx, r.Cluster, backwards)
	}, workload.Deleted(objects)...)
}

func (r *Remover) removal(
	name, title string, left func(context.Context) ([]client.Object, error), changes ...engine.Change,
) engine.Step {
	step := workload.Removal(r.Cluster, name, title, left, changes...)
	step.As = engine.RoleOwn
	return step
}

// stopped waits until no replica runs any more: one that does would make the Lease again.
func (r *Remover) stopped() engine.Step {
	return &engine.Wait{Name: "operator/stopped", About: "Verify that the operator has ended", For: func(ctx context.Context) error {
		pods, err := podsOf(ctx, r.Cluster)
		if err != nil {
			return err
		}
		if len(pods) > 0 {
			return engine.NotYet("pod %s on node %s is still there", pods[0].Name, pods[0].Spec.NodeName)
		}
		return nil
	}}
}

func (r *Remover) unbind() engine.Step {
	bound := func(ctx context.Context) ([]client.Object, error) {
		ours := client.MatchingLabels{"app.kubernetes.io/part-of": "replumb"}
		everywhere, inside := &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}
		for _, list := range []client.ObjectList{everywhere, inside} {
			if err := r.Cluster.List(ctx, list, ours); err != nil {
				return nil, fmt.Errorf("listing the bindings of users: %w", err)
			}
		}
		var all []client.Object
		add := func(o client.Object, kind string, of rbacv1.RoleRef) {
			if strings.HasPrefix(of.Name, "replumb-") {
				o.GetObjectKind().SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind(kind))
				all = append(all, o)
			}
		}
		for n := range everywhere.Items {
			add(&everywhere.Items[n], "ClusterRoleBinding", everywhere.Items[n].RoleRef)
		}
		for n := range inside.Items {
			add(&inside.Items[n], "RoleBinding", inside.Items[n].RoleRef)
		}
		return all, nil
	}
	const all = "ClusterRoleBindings and RoleBindings with the label app.kubernetes.io/part-of=replumb"
	return r.removal("bindings/remove", "Remove the bindings of users", bound, engine.Change{Verb: "delete", Object: all})
}

// vacate removes a namespace that is empty. One with backups, journals or anything of users stays.
func (r *Remover) vacate(name string) engine.Step {
	namespace := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	all := []client.Object{namespace}
	left := func(ctx context.Context) ([]client.Object, error) {
		if kept, err := r.content(ctx, name); err != nil || kept != "" {
			return nil, err
		}
		return workload.Left(ctx, r.Cluster, all)
	}
	return r.removal("namespaces/"+name, "Remove the namespace "+name, left, workload.Deleted(all)...)
}

// Kept are, a line each, the namespaces of replumb that are still there, and what is in them.
func (r *Remover) Kept(ctx context.Context) ([]string, error) {
	var lines []string
	for _, name := range []string{v1alpha1.SystemNamespace, v1alpha1.JournalNamespace} {
		kept, err := r.content(ctx, name)
		if err != nil {
			return nil, err
		}
		if kept != "" {
			const format = "namespace %s stays, with %s in it: kubectl delete namespace %s removes both"
			lines = append(lines, fmt.Sprintf(format, name, kept, name))
		}
	}
	return lines, nil
}

// content lists the objects of a namespace beside those of every namespace; empty if none, or while
// it ends.
func (r *Remover) content(ctx context.Context, namespace string) (string, error) {
	var found []string
	for _, kind := range []string{"ConfigMap", "Secret", "Pod", "ServiceAccount"} {
		all := &metav1.PartialObjectMetadataList{}
		all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
		if err := r.Cluster.List(ctx, all, client.InNamespace(namespace)); err != nil {
			return "", fmt.Errorf("listing %ss in namespace %s: %w", kind, namespace, err)
		}
		n := 0
		for i := range all.Items {
			if name := all.Items[i].Name; name != "kube-root-ca.crt" && name != "default" && all.Items[i].DeletionTimestamp.IsZero() {
				n++
			}
		}
		if n > 0 {
			found = append(found, english.Plural(n, kind, ""))
		}
	}
	return strings.Join(found, ", "), nil
}
