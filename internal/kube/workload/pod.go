package workload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
)

const (
	// TemplateAnnotation tells pods of a template from those of an earlier one.
	TemplateAnnotation = "replumb.dev/template"
	// unprivileged is the user of programs that need no rights on their node.
	unprivileged = 65534
	// away is how many seconds a replica stays on a node that is not ready.
	away = 30
)

// PodOptions is what the pods of programs differ in.
type PodOptions struct {
	// Account that the program runs as; empty for none.
	Account string
	Image   pull.Image
	Args    []string
	Env     []corev1.EnvVar
	// CPU and Memory are requested, and MemoryLimit is the limit. CPU time has no limit: what is
	// throttled would be late.
	CPU, Memory, MemoryLimit string
	// Priority is the class.
	Priority string
	// Grace is how many seconds the program has to end.
	Grace       int64
	Tolerations []corev1.Toleration
	Affinity    *corev1.Affinity
}

// Spec is the spec of the pod, with one container that writes nothing and may do nothing on its
// node.
func (p PodOptions) Spec() corev1.PodSpec {
	return corev1.PodSpec{
		ServiceAccountName: p.Account, EnableServiceLinks: ptr.To(false), PriorityClassName: p.Priority,
		TerminationGracePeriodSeconds: ptr.To(p.Grace),
		Tolerations:                   p.Tolerations, Affinity: p.Affinity,
		ImagePullSecrets: p.Image.References(),
		Containers: []corev1.Container{{
			Name: "replumb", Image: p.Image.Name, Args: p.Args, Env: p.Env,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{
					"cpu": resource.MustParse(p.CPU), "memory": resource.MustParse(p.Memory),
				},
				Limits: corev1.ResourceList{"memory": resource.MustParse(p.MemoryLimit)},
			},
			SecurityContext: &corev1.SecurityContext{
				ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				RunAsUser: ptr.To[int64](unprivileged), RunAsGroup: ptr.To[int64](unprivileged), RunAsNonRoot: ptr.To(true),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}},
	}
}

// controlPlane and master are the labels and taints of nodes that run control planes.
const (
	controlPlane = "node-role.kubernetes.io/control-plane"
	master       = "node-role.kubernetes.io/master"
)

// Replica is a pod of a Deployment whose replicas make up for the loss of each other: on nodes that
// run what belongs to the cluster, and apart from others with the labels if there are as many
// nodes. Root on a node has the tokens of its pods, so it rather runs where root has the keys of
// the cluster anyhow.
func Replica(p PodOptions, labels map[string]string) corev1.PodSpec {
	p.Priority = "system-cluster-critical"
	for _, key := range []string{"CriticalAddonsOnly", controlPlane, master} {
		p.Tolerations = append(p.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	p.Tolerations = append(p.Tolerations, Leaves(away)...)
	// An API server that has vanished without a word is noticed within five seconds, and not within
	// 45 (SetTransportDefaults in k8s.io/apimachinery pkg/util/net/http.go).
	p.Env = append(p.Env, corev1.EnvVar{Name: "HTTP2_READ_IDLE_TIMEOUT_SECONDS", Value: "3"},
		corev1.EnvVar{Name: "HTTP2_PING_TIMEOUT_SECONDS", Value: "2"})
	p.Affinity = OnNodes(Foreign())
	for _, key := range []string{controlPlane, master} {
		p.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			p.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
				Weight: 100, Preference: corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}},
				},
			})
	}
	p.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
			},
		}},
	}
	return p.Spec()
}

// Leaves has a pod leave a node that has not been ready, or that has not been reached, for some
// seconds.
func Leaves(seconds int64) []corev1.Toleration {
	var all []corev1.Toleration
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		all = append(all, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: ptr.To(seconds),
		})
	}
	return all
}

// OnNodes has pods run on the nodes that requirements select.
func OnNodes(requirements []corev1.NodeSelectorRequirement) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}},
		},
	}}
}

// Foreign are nodes on which Linux pods do not run, and those that stand for no machine, by their
// labels.
func Foreign() []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{
		Not(corev1.LabelOSStable, "windows"), Not("type", "virtual-kubelet"),
		Not("eks.amazonaws.com/compute-type", "fargate"), Not(v1alpha1.LabelTrial, "true"),
	}
}

// Not selects nodes by what a label of theirs is not.
func Not(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}
}

// FromField is a variable of the environment that has a field of the pod.
func FromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{
		Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
	}
}

// Template is a template whose pods differ from those of others in their annotation.
func Template(labels map[string]string, pod corev1.PodSpec) (corev1.PodTemplateSpec, error) {
	body, err := json.Marshal(pod)
	sum := sha256.Sum256(body)
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: labels, Annotations: map[string]string{TemplateAnnotation: hex.EncodeToString(sum[:])[:16]},
		},
		Spec: pod,
	}, err
}

// Deployment starts one new pod at a time, and has that many fewer than replicas meanwhile.
func Deployment(
	meta metav1.ObjectMeta, selector map[string]string, replicas, fewer int32, pods corev1.PodTemplateSpec,
) *appsv1.Deployment {
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas), Selector: &metav1.LabelSelector{MatchLabels: selector}, Template: pods,
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxUnavailable: ptr.To(intstr.FromInt32(fewer)), MaxSurge: ptr.To(intstr.FromInt32(1)),
				},
			},
		},
	}
}

// Budget keeps pods while nodes are drained.
func Budget(meta metav1.ObjectMeta, spec policyv1.PodDisruptionBudgetSpec) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"}, ObjectMeta: meta, Spec: spec,
	}
}

// Pods are the pods of what is called so in errors.
func Pods(ctx context.Context, c client.Reader, of string, opts ...client.ListOption) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := c.List(ctx, all, opts...); err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", of, err)
	}
	return all.Items, nil
}

// ReadyNodes are the names of the nodes that are ready. The kubelet of another cannot say that a
// pod has ended.
func ReadyNodes(ctx context.Context, c client.Reader) (map[string]bool, error) {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	ready := map[string]bool{}
	for i := range nodes.Items {
		ready[nodes.Items[i].Name] = inventory.NodeReady(&nodes.Items[i])
	}
	return ready, nil
}
