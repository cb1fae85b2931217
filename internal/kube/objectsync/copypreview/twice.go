package copypreview

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// NamedWorkloads are those of one kind in one namespace.
type NamedWorkloads struct {
	Resource, Namespace string
	Names               []string
}

// noteTwice notes a workload that will run in both clusters, and why that may be wrong.
func (s *surveyor) noteTwice(k objects.ResourceKind, o *unstructured.Unstructured) {
	pod := objects.PodSpec(k, o)
	if pod == nil || s.Rules.SleepOf(k, o) != nil || k.Is("", "PodTemplate") || k.Is("batch", "Job") {
		return
	}
	account, _ := pod["serviceAccountName"].(string)
	what := mayRunTwice(k, o, s.rights[objects.Key{Namespace: o.GetNamespace(), Name: cmp.Or(account, "default")}])
	switch replicas, counted := objects.Inside(o.Object, "spec")["replicas"].(int64); {
	case what != "" && len(s.Twice) < maxNotes:
		s.Twice = append(s.Twice, objects.Note{Ref: objects.RefOf(k, o), What: what})
	case what == "" && (!counted || replicas > 0):
		s.beside(k, o)
	}
}

func (s *surveyor) beside(k objects.ResourceKind, o *unstructured.Unstructured) {
	i := slices.IndexFunc(s.Beside, func(w NamedWorkloads) bool { return w.Resource == k.String() && w.Namespace == o.GetNamespace() })
	if i < 0 {
		s.Beside = append(s.Beside, NamedWorkloads{Resource: k.String(), Namespace: o.GetNamespace()})
		i = len(s.Beside) - 1
	}
	s.Beside[i].Names = append(s.Beside[i].Names, o.GetName())
}

func mayRunTwice(k objects.ResourceKind, o *unstructured.Unstructured, may accountRights) string {
	replicas, counted := objects.Inside(o.Object, "spec")["replicas"].(int64)
	switch {
	case counted && replicas == 0:
		return ""
	case k.Is("batch", "CronJob"):
		return "runs in both clusters"
	case len(may.custom) > 0:
		return "may write " + some(may.custom) + ", which the target gets too: what acts on them does so in each cluster"
	case may.leases:
		return "may write Leases: if it elects a leader, each cluster would have one"
	case counted && replicas == 1 && (k.Is("apps", "Deployment") || k.Is("apps", "StatefulSet")):
		return fmt.Sprintf("has one pod, and would have one in each cluster; if there must be only one, list it in "+
			"spec.mirror.singletons.workloads or annotate it %s: \"true\"", v1alpha1.AnnotationRunOnce)
	}
	return ""
}

func some(names []string) string {
	if len(names) <= maxExamples {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more kinds", strings.Join(names[:maxExamples], ", "), len(names)-maxExamples)
}

// accountRights are what a ServiceAccount may write that tells of a leader or of an owner.
type accountRights struct {
	leases bool
	// custom are kinds of definitions that are copied.
	custom []string
}

func (a accountRights) with(b accountRights) accountRights {
	out := accountRights{leases: a.leases || b.leases, custom: slices.Concat(a.custom, b.custom)}
	slices.Sort(out.custom)
	out.custom = slices.Compact(out.custom)
	return out
}

// rightsOfAccounts reads the roles of a side. None are known where they may not be read.
func rightsOfAccounts(ctx context.Context, s *objectsync.Side, r *copyrules.Rules) (map[objects.Key]accountRights, error) {
	defined, err := s.Defined(ctx, r)
	if err != nil {
		return nil, err
	}
	custom := make([]string, 0, len(defined))
	for name := range defined {
		custom = append(custom, name)
	}
	all, err := grants(ctx, s, custom)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return all, err
}

func grants(ctx context.Context, s *objectsync.Side, custom []string) (map[objects.Key]accountRights, error) {
	roles, err := rolesOf(ctx, s, custom)
	if err != nil {
		return nil, err
	}
	all := map[objects.Key]accountRights{}
	grant := func(namespace string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		of := objects.Key{Name: ref.Name}
		if ref.Kind == "Role" {
			of.Namespace = namespace
		}
		for _, subject := range subjects {
			if subject.Kind == rbacv1.ServiceAccountKind {
				account := objects.Key{Namespace: subject.Namespace, Name: subject.Name}
				all[account] = all[account].with(roles[of])
			}
		}
	}
	bindings, err := cluster.List[rbacv1.RoleBinding](ctx, s, &rbacv1.RoleBindingList{})
	if err != nil {
		return nil, err
	}
	for i := range bindings {
		grant(bindings[i].Namespace, bindings[i].RoleRef, bindings[i].Subjects)
	}
	everywhere, err := cluster.List[rbacv1.ClusterRoleBinding](ctx, s, &rbacv1.ClusterRoleBindingList{})
	if err != nil {
		return nil, err
	}
	for i := range everywhere {
		grant("", everywhere[i].RoleRef, everywhere[i].Subjects)
	}
	return all, nil
}

// rolesOf are what each grants; ClusterRoles have no namespace.
func rolesOf(ctx context.Context, s *objectsync.Side, custom []string) (map[objects.Key]accountRights, error) {
	all := map[objects.Key]accountRights{}
	roles, err := cluster.List[rbacv1.Role](ctx, s, &rbacv1.RoleList{})
	if err != nil {
		return nil, err
	}
	for i := range roles {
		all[objects.KeyOf(&roles[i])] = granted(roles[i].Rules, custom)
	}
	everywhere, err := cluster.List[rbacv1.ClusterRole](ctx, s, &rbacv1.ClusterRoleList{})
	if err != nil {
		return nil, err
	}
	for i := range everywhere {
		all[objects.Key{Name: everywhere[i].Name}] = granted(everywhere[i].Rules, custom)
	}
	return all, nil
}

func granted(rules []rbacv1.PolicyRule, custom []string) accountRights {
	var out accountRights
	for _, rule := range rules {
		out.leases = out.leases || writes(rule, schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"})
		for _, name := range custom {
			if writes(rule, schema.ParseGroupResource(name)) {
				out.custom = append(out.custom, name)
			}
		}
	}
	return out
}

func writes(rule rbacv1.PolicyRule, what schema.GroupResource) bool {
	has := func(all []string, wanted ...string) bool {
		return slices.ContainsFunc(all, func(one string) bool { return one == "*" || slices.Contains(wanted, one) })
	}
	return has(rule.APIGroups, what.Group) && has(rule.Resources, what.Resource, what.Resource+"/status") && has(rule.Verbs, "update", "patch")
}
