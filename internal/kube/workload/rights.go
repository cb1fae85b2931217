package workload

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/rbac"
)

// Account is a ServiceAccount.
func Account(meta metav1.ObjectMeta) client.Object {
	return &corev1.ServiceAccount{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta,
	}
}

// Rights are an account and what it may do in all namespaces, and in its own beside that: roles of
// one name, each with its binding, in the order in which they are made.
func Rights(account metav1.ObjectMeta, access string, everywhere, inside []access.Right) []client.Object {
	who := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}
	meta := metav1.ObjectMeta{Name: access, Labels: account.Labels}
	role := client.Object(&rbacv1.ClusterRole{
		TypeMeta: typed("ClusterRole"), ObjectMeta: meta, Rules: rbac.Rules(everywhere),
	})
	all := []client.Object{Account(account), role, Binding(role, who)}
	if len(inside) == 0 {
		return all
	}
	meta.Namespace = account.Namespace
	role = &rbacv1.Role{TypeMeta: typed("Role"), ObjectMeta: meta, Rules: rbac.Rules(inside)}
	return append(all, role, Binding(role, who))
}

// Binding binds a role to a subject. It has the labels of the role.
func Binding(role client.Object, who rbacv1.Subject) client.Object {
	kind := role.GetObjectKind().GroupVersionKind().Kind
	of := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role.GetName()}
	meta := metav1.ObjectMeta{
		Namespace: role.GetNamespace(), Name: role.GetName(), Labels: role.GetLabels(),
	}
	to := []rbacv1.Subject{who}
	if meta.Namespace == "" {
		return &rbacv1.ClusterRoleBinding{TypeMeta: typed(kind + "Binding"), ObjectMeta: meta, RoleRef: of, Subjects: to}
	}
	return &rbacv1.RoleBinding{TypeMeta: typed(kind + "Binding"), ObjectMeta: meta, RoleRef: of, Subjects: to}
}

func typed(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
}
