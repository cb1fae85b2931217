// Package controlplane finds static pods of the control plane by their labels.
package controlplane

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Component is a program of the control plane, by the name that its pods are labelled with.
type Component string

// The components whose flags say which ranges a cluster has.
const (
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
)

// labels are kubeadm's (ComponentPod in k8s.io/kubernetes cmd/kubeadm/app/util/staticpod), and
// kOps' (k8s.io/kops nodeup/pkg/model, kube_apiserver.go and kube_controller_manager.go).
func labels() []string { return []string{"component", "k8s-app"} }

// Is reports whether a pod is one of a component, by its namespace and labels.
func (c Component) Is(p *corev1.Pod) bool {
	return p.Namespace == metav1.NamespaceSystem &&
		slices.ContainsFunc(labels(), func(key string) bool { return p.Labels[key] == string(c) })
}

// IsStatic pods are run from a file, so their command line is the node's.
func (c Component) IsStatic(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror && c.Is(p)
}

// Pods of a component. The error is the API server's, as it is.
func (c Component) Pods(ctx context.Context, from client.Reader) ([]corev1.Pod, error) {
	var all []corev1.Pod
	for _, key := range labels() {
		found := &corev1.PodList{}
		err := from.List(ctx, found, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{key: string(c)})
		if err != nil {
			return nil, err
		}
		for i := range found.Items {
			if p := found.Items[i]; !slices.ContainsFunc(
				all, func(have corev1.Pod) bool { return have.UID == p.UID && have.Name == p.Name },
			) {
				all = append(all, p)
			}
		}
	}
	return all, nil
}
