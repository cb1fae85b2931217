package installation

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migrations"
)

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels()}
}

type grant struct {
	role access.Role
	who  rbacv1.Subject
}

func grants() []grant {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: v1alpha1.SystemNamespace, Name: Operator}
	everyone := rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:authenticated"}
	return []grant{{migrations.OperatorRole(), account}, {migrations.OperatorLeaseRole(), everyone}}
}

// rights are the account of the operator, and roles with their bindings, in every namespace that
// has rights of its own.
func rights(Options) ([]client.Object, error) {
	all := []client.Object{workload.Account(meta(v1alpha1.SystemNamespace, Operator))}
	for _, g := range grants() {
		roles, err := decode(rbac.Manifest(g.role))
		if err != nil {
			return nil, fmt.Errorf("role %s: %w", g.role.Name, err)
		}
		for _, role := range roles {
			role.SetLabels(labels())
			all = append(all, role, workload.Binding(role, g.who))
		}
	}
	return all, nil
}

// operator is its Deployment, and a budget for while nodes are drained.
func operator(o Options) ([]client.Object, error) {
	with := meta(v1alpha1.SystemNamespace, Operator)
	if o.Version != "" {
		with.Labels[LabelVersion] = o.Version
	}
	d := workload.Deployment(with, labels(), o.Replicas, 1, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels()}, Spec: pod(o),
	})
	return []client.Object{d, workload.Budget(meta(v1alpha1.SystemNamespace, Operator),
		policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), // with one replica it does not hold a drain up
			Selector:       d.Spec.Selector,
		})}, nil
}

// pod of a replica. It listens on no port, and has a minute to finish the step in hand.
func pod(o Options) corev1.PodSpec {
	return workload.Replica(workload.PodOptions{
		Account: Operator, Image: o.Image, Args: []string{Argument}, Grace: 60,
		CPU: "100m", Memory: "128Mi", MemoryLimit: "1Gi",
		Env: []corev1.EnvVar{
			workload.FromField("POD_NAME", "metadata.name"),
			workload.FromField("POD_NAMESPACE", "metadata.namespace"),
			workload.FromField("POD_UID", "metadata.uid"),
		},
	}, labels())
}
