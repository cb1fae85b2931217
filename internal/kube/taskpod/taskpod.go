// Package taskpod runs pods that do one thing on a node, report and end.
package taskpod

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/readiness"
)

const (
	// Label is on every pod that does something on a node; its value is what.
	Label = "replumb.dev/on-node"
	// Limit is how long its image may take to come, and it may work.
	Limit = 5 * time.Minute
	// HostRoot is where the root of the node is mounted.
	HostRoot = "/host"
	// ReportPath is where the kubelet reads a container's last words.
	ReportPath = "/dev/termination-log"
)

// Task does one thing on a node. It has no access to the API.
type Task struct {
	Client    client.Client
	Migration string
	// Verb is what it is for: the sub-command of replumb node that it runs, and part of its labels.
	Verb, Node string
}

func (p *Task) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: p.Migration, Label: p.Verb}
}

// Object is the pod by the spec of Spec, to be given to Start.
func (p *Task) Object(spec corev1.PodSpec) *corev1.Pod {
	spec.NodeName, spec.RestartPolicy = p.Node, corev1.RestartPolicyNever
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "node-" + p.Verb + "-", Labels: p.labels(),
		},
		Spec: spec,
	}
}

// Start makes the pod. One of an earlier run is ended first: what it found may have changed since.
func (p *Task) Start(ctx context.Context, made *corev1.Pod) error {
	if err := p.End(ctx); err != nil {
		return err
	}
	if err := p.Client.Create(ctx, made, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("a pod on node %s: %w", p.Node, err)
	}
	return nil
}

// Find has those that are not being deleted.
func (p *Task) Find(ctx context.Context) ([]corev1.Pod, error) {
	all := &corev1.PodList{}
	if err := p.Client.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), p.labels()); err != nil {
		return nil, fmt.Errorf("looking for the pod on node %s: %w", p.Node, err)
	}
	return slices.DeleteFunc(all.Items, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName != p.Node || !pod.DeletionTimestamp.IsZero()
	}), nil
}

// End deletes all of them.
func (p *Task) End(ctx context.Context) error {
	all, err := p.Find(ctx)
	for i := range all {
		if e := p.Client.Delete(ctx, &all[i], client.GracePeriodSeconds(1)); client.IgnoreNotFound(e) != nil {
			return fmt.Errorf("ending pod %s: %w", all[i].Name, e)
		}
	}
	return err
}

// Report has the last words of one that succeeded. The error is a TaskError of one that failed,
// or an engine.NotYet.
func (p *Task) Report(ctx context.Context) (string, error) {
	all, err := p.Find(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", engine.NotYet("node %s has no pod of replumb", p.Node)
	}
	pod := &all[len(all)-1]
	message := pod.Status.Message
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil {
			message = strings.TrimSpace(t.Message)
		}
	}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return message, nil
	case corev1.PodFailed:
		return "", &TaskError{Node: p.Node, Message: strings.TrimPrefix(message, "error: ")}
	}
	why := readiness.Blocked(pod)
	if why == "" {
		why = string(pod.Status.Phase)
	}
	return "", engine.NotYet("pod %s on node %s has not ended: %s", pod.Name, p.Node, why)
}

// TaskError is what a pod said that failed.
type TaskError struct{ Node, Message string }

func (e *TaskError) Error() string { return fmt.Sprintf("node %s: %s", e.Node, e.Message) }

// Spec is a pod on the network of its node, which no taint keeps away and nothing pushes out.
func Spec(image pull.Image, c corev1.Container) corev1.PodSpec {
	return corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical", DNSPolicy: corev1.DNSDefault,
		AutomountServiceAccountToken: ptr.To(false), EnableServiceLinks: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Tolerations:      []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ImagePullSecrets: image.References(), Containers: []corev1.Container{c},
	}
}

// Container runs a sub-command of replumb node, and reports to ReportPath.
func Container(image pull.Image, args []string, security *corev1.SecurityContext) corev1.Container {
	return corev1.Container{
		Name: "replumb", Image: image.Name, Args: slices.Concat([]string{"node"}, args, []string{"--report=" + ReportPath}),
		TerminationMessagePath: ReportPath, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: security,
	}
}

// Mount is a path of the node, and where the pod has it, below HostRoot.
func Mount(name, path string, kind corev1.HostPathType) (corev1.Volume, corev1.VolumeMount) {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}},
		corev1.VolumeMount{Name: name, MountPath: strings.TrimSuffix(HostRoot+path, "/")}
}

// RootWith is root in a container that has some capabilities and no others.
func RootWith(capabilities ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0), RunAsNonRoot: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
	}
}
