package installation

import (
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/migration/incluster"
	"github.com/replumb/replumb/internal/migrations"
)

// away is for how many seconds a replica stays on a node that is not ready.
const away = 30

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels()}
}

// grant is a role and whom it is bound to.
type grant struct {
	role cluster.Role
	who  rbacv1.Subject
}

// grants are those that come with the operator.
func grants() []grant {
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: v1alpha1.SystemNamespace, Name: Operator}
	everyone := rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:authenticated"}
	return []grant{{migrations.OperatorRole(), account}, {migrations.OperatorLeaseRole(), everyone}}
}

// rights are the account of the operator, and roles with their bindings, in every namespace that has rights of its own.
func rights(Options) ([]client.Object, error) {
	all := []client.Object{&corev1.ServiceAccount{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta(v1alpha1.SystemNamespace, Operator),
	}}
	for _, g := range grants() {
		roles, err := decode(rbac.Manifest(g.role))
		if err != nil {
			return nil, fmt.Errorf("role %s: %w", g.role.Name, err)
		}
		for _, role := range roles {
			role.SetLabels(labels())
			all = append(all, role, binding(role, g.who))
		}
	}
	return all, nil
}

// binding gives a role to a subject.
func binding(role client.Object, who rbacv1.Subject) client.Object {
	kind := role.GetObjectKind().GroupVersionKind().Kind
	typed := metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind + "Binding"}
	of := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role.GetName()}
	name, to := meta(role.GetNamespace(), role.GetName()), []rbacv1.Subject{who}
	if role.GetNamespace() == "" {
		return &rbacv1.ClusterRoleBinding{TypeMeta: typed, ObjectMeta: name, RoleRef: of, Subjects: to}
	}
	return &rbacv1.RoleBinding{TypeMeta: typed, ObjectMeta: name, RoleRef: of, Subjects: to}
}

// operator is its Deployment, and what keeps one replica there while nodes are drained.
func operator(o Options) ([]client.Object, error) {
	selector := &metav1.LabelSelector{MatchLabels: labels()}
	with := meta(v1alpha1.SystemNamespace, Operator)
	if o.Version != "" {
		with.Labels = maps.Clone(with.Labels)
		with.Labels[LabelVersion] = o.Version
	}
	one := ptr.To(intstr.FromInt32(1))
	return []client.Object{
		&appsv1.Deployment{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: with,
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To(o.Replicas), Selector: selector,
				Strategy: appsv1.DeploymentStrategy{
					Type:          appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: one, MaxSurge: one},
				},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels()}, Spec: pod(o)},
			},
		},
		&policyv1.PodDisruptionBudget{
			TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
			ObjectMeta: meta(v1alpha1.SystemNamespace, Operator),
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: one,
				Selector:       selector,
			}, // with one replica it does not hold a drain up
		},
	}, nil
}

// pod of a replica. It listens on no port.
func pod(o Options) corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName: Operator, EnableServiceLinks: ptr.To(false), PriorityClassName: "system-cluster-critical",
		TerminationGracePeriodSeconds: ptr.To[int64](60), // the step in hand is finished
		Tolerations:                   tolerations(), Affinity: apart(), ImagePullSecrets: o.Image.References(),
		Containers: []corev1.Container{{
			Name: "replumb", Image: o.Image.Name, Args: []string{Argument},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Env: []corev1.EnvVar{
				incluster.FromField("POD_NAME", "metadata.name"), incluster.FromField("POD_NAMESPACE", "metadata.namespace"),
				incluster.FromField("POD_UID", "metadata.uid"),
				// An API server that has vanished without a word is noticed within five seconds, and not within 45.
				{Name: "HTTP2_READ_IDLE_TIMEOUT_SECONDS", Value: "3"},
				{Name: "HTTP2_PING_TIMEOUT_SECONDS", Value: "2"},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("1Gi")},
			},
			SecurityContext: incluster.Unprivileged(),
		}},
	}
}

// tolerations are for nodes that run what belongs to the cluster. A replica leaves a node that is drained or gone.
func tolerations() []corev1.Toleration {
	var all []corev1.Toleration
	for _, key := range []string{"CriticalAddonsOnly", "node-role.kubernetes.io/control-plane"} {
		all = append(all, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		all = append(all, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](away),
		})
	}
	return all
}

// apart has replicas run on nodes of their own, if there are as many.
func apart() *corev1.Affinity {
	return &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: incluster.Foreign()}},
		}},
		PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels()},
			},
		}}},
	}
}
