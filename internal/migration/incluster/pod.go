package incluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// TemplateAnnotation tells pods of a template from those of an earlier one.
const TemplateAnnotation = "replumb.dev/template"

// unprivileged is the user that programs run as which need no rights on their node.
const unprivileged = 65534

// Foreign are nodes on which Linux pods do not run, and those that stand for no machine, by their labels.
func Foreign() []corev1.NodeSelectorRequirement {
	return []corev1.NodeSelectorRequirement{
		Not(corev1.LabelOSStable, "windows"), Not("type", "virtual-kubelet"), Not("eks.amazonaws.com/compute-type", "fargate"),
		Not(v1alpha1.LabelTrial, "true"),
	}
}

// Not selects nodes by what a label of theirs is not.
func Not(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}
}

// Unprivileged is the security context of a container that writes nothing and may do nothing on its node.
func Unprivileged() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
		RunAsUser: ptr.To[int64](unprivileged), RunAsGroup: ptr.To[int64](unprivileged), RunAsNonRoot: ptr.To(true),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// FromField is a variable of the environment that has a field of the pod.
func FromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// Digest is what TemplateAnnotation has for pods of a spec.
func Digest(pod *corev1.PodSpec) (string, error) {
	body, err := json.Marshal(pod)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])[:16], nil
}

// ReadyNodes are the names of the nodes that are ready. The kubelet of any other cannot say that a pod has ended.
func ReadyNodes(ctx context.Context, c client.Reader) (map[string]bool, error) {
	nodes := &corev1.NodeList{}
	if err := c.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	ready := map[string]bool{}
	for i := range nodes.Items {
		ready[nodes.Items[i].Name] = cluster.NodeReady(&nodes.Items[i])
	}
	return ready, nil
}
