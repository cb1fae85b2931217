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

// healthPort is where pods of the operator answer probes.
const healthPort = 8081

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

// pod of a replica. It listens for kubelets alone, and has a minute to finish the step in hand.
func pod(o Options) corev1.PodSpec {
	replica := workload.Replica(workload.PodOptions{
		Account: Operator, Image: o.Image, Grace: 60,
		Args: []string{Argument, fmt.Sprintf("--health-probe-bind-address=%d", healthPort)},
		CPU:  "100m", Memory: "128Mi", MemoryLimit: "1Gi",
		Env: []corev1.EnvVar{
			workload.FromField("POD_NAME", "metadata.name"),
			workload.FromField("POD_NAMESPACE", "metadata.namespace"),
			workload.FromField("POD_UID", "metadata.uid"),
		},
	}, labels())
	probed(&replica.Containers[0])
	return replica
}

// probed has kubelets end a replica that has answered nothing for two minutes. A restart while the
// network of pods is replaced would help nobody, hence the patience.
func probed(c *corev1.Container) {
	const health = "health"
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString(health)}}
	}
	c.Ports = append(c.Ports, corev1.ContainerPort{Name: health, ContainerPort: healthPort})
	c.LivenessProbe = &corev1.Probe{ProbeHandler: get("/healthz"), PeriodSeconds: 20, FailureThreshold: 6}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: get("/readyz")}
}
