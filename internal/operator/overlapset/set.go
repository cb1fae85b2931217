// Package overlapset puts the Deployment into the cluster that keeps bridges in step with their Services between commands, waits for its replicas, says
// why one does not come up, and takes it away. What the replicas do is in internal/operator/overlap.
package overlapset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration/incluster"
	"github.com/replumb/replumb/internal/operator/overlap"
)

const (
	// Phase is the name of the phase that Install is.
	Phase = "overlap"
	// Name is that of the Deployment, its PodDisruptionBudget and its account.
	Name = "overlap"
	// Access is the name of its roles.
	Access = "replumb-overlap"
	// Replicas is how many there are: each makes up for the loss of the other.
	Replicas = 2

	// DefaultWait is how long they may take to come up by default.
	DefaultWait = 2 * time.Minute
	// away is for how many seconds a replica stays on a node that is not ready.
	away = 30
)

// without is what there is to do without it.
const without = "do without it, when bridges are in step only while a command runs: spec.serviceCIDR.follower: Disabled"

// Set is the Deployment of one migration.
type Set struct {
	Cluster   *cluster.Cluster
	Migration string
	// Image of replumb.
	Image pull.Image
	// Wait is how long replicas may take to come up. Default: DefaultWait.
	Wait time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

func (s *Set) wait() time.Duration { return cmp.Or(s.Wait, DefaultWait) }

func (s *Set) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Install puts the Deployment there, or repairs it, and waits until its replicas have everything in step. The namespace must be there. A nil Set
// installs nothing.
func (s *Set) Install() []engine.Group {
	return s.install(&aliveStep{set: s})
}

// InstallIfPossible does the same on the way back, which may be the way out of what keeps replicas from coming up: it goes on without them
// when it has waited for a while.
func (s *Set) InstallIfPossible() []engine.Group {
	return s.install(&aliveStep{set: s, lenient: true})
}

func (s *Set) install(alive *aliveStep) []engine.Group {
	if s == nil {
		return nil
	}
	return engine.InOrder(
		s.apply("overlap/rights", "Grant the overlap its rights", s.rights),
		s.apply("overlap/deployment", "Run the overlap, which updates bridges between commands", s.deployment),
		alive,
	)
}

// Remove takes away what Install has made, but for the namespace. There must be no bridges any more.
func (s *Set) Remove() []engine.Group {
	if s == nil {
		return nil
	}
	return engine.InOrder(&removeStep{set: s})
}

// There reports whether there is one. Who may not look has not made any.
func (s *Set) There(ctx context.Context) (bool, error) {
	d, err := s.get(ctx)
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return d != nil && d.Labels[v1alpha1.LabelMigration] == s.Migration, err
}

// get is the Deployment; nil if there is none.
func (s *Set) get(ctx context.Context) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	err := s.Cluster.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Name}, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("deployment %s/%s: %w", v1alpha1.SystemNamespace, Name, err)
	}
	return d, nil
}

func (s *Set) apply(id, title string, build func(servers []string) ([]client.Object, error)) *incluster.ApplyStep {
	return &incluster.ApplyStep{
		Cluster: s.Cluster, Migration: s.Migration, Name: id, About: title, Build: build, Without: without,
	}
}

func (s *Set) meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: overlap.Labels(s.Migration)}
}

// ours selects what this migration has of it in replumb's namespace.
func (s *Set) ours() []client.ListOption {
	return []client.ListOption{client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabels(overlap.Labels(s.Migration))}
}

func (s *Set) pods(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := s.Cluster.List(ctx, all, s.ours()...); err != nil {
		return nil, fmt.Errorf("listing the pods of deployment %s: %w", Name, err)
	}
	return all.Items, nil
}

func (s *Set) leases(ctx context.Context) ([]coordinationv1.Lease, error) {
	all := &coordinationv1.LeaseList{}
	if err := s.Cluster.List(ctx, all, s.ours()...); err != nil {
		return nil, fmt.Errorf("listing the leases of deployment %s: %w", Name, err)
	}
	return all.Items, nil
}

// deployment selects pods by their role alone, so that what a migration has left can be taken over: a selector cannot be changed.
func (s *Set) deployment(servers []string) ([]client.Object, error) {
	pod := s.pod(servers)
	digest, err := incluster.Digest(&pod)
	if err != nil {
		return nil, fmt.Errorf("deployment %s: %w", Name, err)
	}
	of := &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleOverlap}}
	one := ptr.To(intstr.FromInt32(1))
	return []client.Object{
		&appsv1.Deployment{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
			ObjectMeta: s.meta(v1alpha1.SystemNamespace, Name),
			Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](Replicas), Selector: of,
				// A new replica has seen everything before an old one goes.
				MinReadySeconds: 5,
				Strategy: appsv1.DeploymentStrategy{
					Type:          appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: one, MaxSurge: one},
				},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{
						Labels: overlap.Labels(s.Migration), Annotations: map[string]string{incluster.TemplateAnnotation: digest},
					},
					Spec: pod,
				},
			},
		},
		&policyv1.PodDisruptionBudget{
			TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
			ObjectMeta: s.meta(v1alpha1.SystemNamespace, Name),
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: one, Selector: of},
		},
	}, nil
}

// pod of a replica. It listens on no port, and needs no Service to reach API servers.
func (s *Set) pod(servers []string) corev1.PodSpec {
	args := []string{"overlap", "--migration=" + s.Migration, incluster.APIFlag + strings.Join(servers, ",")}
	return corev1.PodSpec{
		ServiceAccountName:            Name,
		EnableServiceLinks:            ptr.To(false),
		PriorityClassName:             "system-cluster-critical",
		DNSPolicy:                     corev1.DNSDefault,
		TerminationGracePeriodSeconds: ptr.To[int64](10),
		Tolerations:                   tolerations(),
		Affinity:                      apart(),
		Containers: []corev1.Container{{
			Name: "replumb", Image: s.Image.Name, Args: args, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Env: []corev1.EnvVar{
				incluster.FromField("POD_NAME", "metadata.name"), incluster.FromField("POD_UID", "metadata.uid"),
				// An API server that has vanished without a word is noticed within five seconds, and not within 45
				// (SetTransportDefaults in k8s.io/apimachinery pkg/util/net/http.go).
				{Name: "HTTP2_READ_IDLE_TIMEOUT_SECONDS", Value: "3"},
				{Name: "HTTP2_PING_TIMEOUT_SECONDS", Value: "2"},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("20m"), "memory": resource.MustParse("48Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("512Mi")},
			},
			SecurityContext: incluster.Unprivileged(),
		}},
		ImagePullSecrets: s.Image.References(),
	}
}

// tolerations are for nodes that run what belongs to the cluster. Agents tolerate all taints, and replicas cannot: on a node that is being
// drained, and on one that is gone, there must be none of them.
func tolerations() []corev1.Toleration {
	var all []corev1.Toleration
	for _, key := range []string{"CriticalAddonsOnly", "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"} {
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
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleOverlap}},
			},
		}}},
	}
}

// rights are the account, its roles and their bindings, in the order in which they are made.
func (s *Set) rights([]string) ([]client.Object, error) {
	const rbac = "rbac.authorization.k8s.io"
	who := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: v1alpha1.SystemNamespace, Name: Name}}
	typed := func(kind string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: rbac + "/v1", Kind: kind} }
	return []client.Object{
		&corev1.ServiceAccount{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: s.meta(v1alpha1.SystemNamespace, Name),
		},
		&rbacv1.ClusterRole{TypeMeta: typed("ClusterRole"), ObjectMeta: s.meta("", Access), Rules: rules(everywhere())},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: typed("ClusterRoleBinding"), ObjectMeta: s.meta("", Access), Subjects: who,
			RoleRef: rbacv1.RoleRef{APIGroup: rbac, Kind: "ClusterRole", Name: Access},
		},
		&rbacv1.Role{TypeMeta: typed("Role"), ObjectMeta: s.meta(v1alpha1.SystemNamespace, Access), Rules: rules(leases())},
		&rbacv1.RoleBinding{
			TypeMeta: typed("RoleBinding"), ObjectMeta: s.meta(v1alpha1.SystemNamespace, Access), Subjects: who,
			RoleRef: rbacv1.RoleRef{APIGroup: rbac, Kind: "Role", Name: Access},
		},
	}, nil
}

// kinds are what there is beside leases and pods, in the order in which it goes.
func (s *Set) kinds() ([]client.Object, error) {
	made, err := s.deployment(nil)
	if err != nil {
		return nil, err
	}
	rights, err := s.rights(nil)
	if err != nil {
		return nil, err
	}
	slices.Reverse(rights)
	return slices.Concat(made, rights), nil
}
