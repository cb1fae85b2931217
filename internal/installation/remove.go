package installation

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/incluster"
)

// Remover takes replumb out of a cluster.
type Remover struct {
	Cluster *cluster.Cluster
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// Goes fails with a *StandingError as long as replumb is needed in the cluster. Otherwise it returns, a line each, what goes beside the
// operator: Migrations that are over. Nothing is written.
func (r *Remover) Goes(ctx context.Context) ([]string, error) {
	all, err := r.standing(ctx)
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

// Run removes all that install makes: the operator first, definitions and namespaces last. Meanwhile no migration can begin. It fails as
// Goes does. Namespaces stay that have something in them.
func (r *Remover) Run(ctx context.Context, runner *engine.Runner) error {
	now := r.Now
	if now == nil {
		now = time.Now
	}
	lock := &migration.Keeper{Client: r.Cluster, Now: now}
	return lock.Locked(ctx, "uninstall", func(ctx context.Context) error {
		if _, err := r.standing(ctx); err != nil {
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
	everything := Options{Scope: Everything, Image: pull.Image{Name: "any"}, Replicas: Replicas, Purposes: cluster.Purposes()}
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

// remove deletes objects, the last one first.
func (r *Remover) remove(name, title string, objects []*unstructured.Unstructured) engine.Step {
	return &engine.Write{
		Name: name + "/remove", About: title, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			for _, o := range objects {
				have, err := r.get(ctx, o)
				if err != nil {
					return err
				}
				if have != nil {
					return engine.NotYet("%s is still there", incluster.NameOf(o))
				}
			}
			return nil
		},
		Write: func(ctx context.Context) error {
			for n := len(objects) - 1; n >= 0; n-- {
				if err := r.delete(ctx, objects[n]); err != nil {
					return err
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			var all []engine.Change
			for _, o := range objects {
				all = append(all, engine.Change{Verb: "delete", Object: incluster.NameOf(o)})
			}
			return all, nil
		},
	}
}

func (r *Remover) get(ctx context.Context, o client.Object) (*metav1.PartialObjectMetadata, error) {
	have := &metav1.PartialObjectMetadata{}
	have.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	err := r.Cluster.Get(ctx, client.ObjectKeyFromObject(o), have)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", incluster.NameOf(o), err)
	}
	return have, nil
}

func (r *Remover) delete(ctx context.Context, o client.Object) error {
	gone := &metav1.PartialObjectMetadata{}
	gone.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	gone.SetNamespace(o.GetNamespace())
	gone.SetName(o.GetName())
	if err := r.Cluster.Delete(ctx, gone, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing %s: %w", incluster.NameOf(o), err)
	}
	return nil
}

// stopped waits until no replica runs any more: one that does would make the Lease again.
func (r *Remover) stopped() engine.Step {
	return &engine.Wait{Name: "operator/stopped", About: "Verify that the operator has ended", For: func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := r.Cluster.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels(labels())); err != nil {
			return fmt.Errorf("listing the pods of deployment %s: %w", Operator, err)
		}
		if len(pods.Items) > 0 {
			return engine.NotYet("pod %s on node %s is still there", pods.Items[0].Name, pods.Items[0].Spec.NodeName)
		}
		return nil
	}}
}

// unbind deletes the bindings that replumb rbac has made for users.
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
		for n := range everywhere.Items {
			if b := &everywhere.Items[n]; strings.HasPrefix(b.RoleRef.Name, "replumb-") {
				b.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))
				all = append(all, b)
			}
		}
		for n := range inside.Items {
			if b := &inside.Items[n]; strings.HasPrefix(b.RoleRef.Name, "replumb-") {
				b.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("RoleBinding"))
				all = append(all, b)
			}
		}
		return all, nil
	}
	return &engine.Write{
		Name: "bindings/remove", About: "Remove the bindings of users", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			all, err := bound(ctx)
			if err == nil && len(all) > 0 {
				return engine.NotYet("%s is still there", incluster.NameOf(all[0]))
			}
			return err
		},
		Write: func(ctx context.Context) error {
			all, err := bound(ctx)
			for _, o := range all {
				if err == nil {
					err = r.delete(ctx, o)
				}
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			const all = "ClusterRoleBindings and RoleBindings with the label app.kubernetes.io/part-of=replumb"
			return []engine.Change{{Verb: "delete", Object: all}}, nil
		},
	}
}

// vacate removes a namespace that is empty. One with backups, journals or anything of users stays.
func (r *Remover) vacate(name string) engine.Step {
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(name)
	return &engine.Write{
		Name: "namespaces/" + name, About: "Remove the namespace " + name, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			if kept, err := r.content(ctx, name); err != nil || kept != "" {
				return err
			}
			have, err := r.get(ctx, namespace)
			if err == nil && have != nil {
				return engine.NotYet("namespace %s is still there", name)
			}
			return err
		},
		Write: func(ctx context.Context) error { return r.delete(ctx, namespace) },
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "delete", Object: "Namespace " + name}}, nil
		},
	}
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

// content is what is in a namespace that is not there in every one; empty if nothing is, or while the namespace ends.
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
