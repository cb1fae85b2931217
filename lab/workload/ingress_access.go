package workload

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// HTTPSPort is that of the ingress's Service for TLS.
	HTTPSPort = 443

	ingressTLSPort = 8443

	// ingressController is who its IngressClass names.
	ingressController = "replumb.local/ingress"
	// ingressRole is what it is called by where names have no namespace.
	ingressRole = "replumb-lab-ingress"
)

// ingressAccess is what the ingress reads, and that it may write where Ingresses are found.
func ingressAccess() []runtime.Object {
	read := []string{"get", "list", "watch"}
	cluster := metav1.ObjectMeta{Name: ingressRole, Labels: ingressLabels()}
	return []runtime.Object{
		&networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: IngressClass}, Spec: networkingv1.IngressClassSpec{Controller: ingressController},
		},
		&corev1.ServiceAccount{ObjectMeta: ingressMeta()},
		&rbacv1.ClusterRole{ObjectMeta: cluster, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"ingresses"}, Verbs: read},
			{APIGroups: []string{networkingv1.GroupName}, Resources: []string{"ingresses/status"}, Verbs: []string{"patch"}},
			{APIGroups: []string{corev1.GroupName}, Resources: []string{"services", "secrets"}, Verbs: read},
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: cluster,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: ingressRole},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: IngressNamespace, Name: IngressName}},
		},
	}
}
