package mirror

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
)

func (s *side) unready(ctx context.Context, of *Spec) ([]string, error) {
	var out []string
	nodes, err := cluster.List[corev1.Node](ctx, s, &corev1.NodeList{})
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		if !inventory.NodeReady(&nodes[i]) {
			out = append(out, "node "+nodes[i].Name+" is not ready")
		}
	}
	count := func(kind string, o metav1.Object, want, ready int32, observed int64) {
		mine := of.chosen(o.GetNamespace()) || o.GetNamespace() == metav1.NamespaceSystem
		if mine && (ready < want || observed < o.GetGeneration()) {
			out = append(out, fmt.Sprintf("%s %s/%s has %d of %d pods ready", kind, o.GetNamespace(), o.GetName(), ready, want))
		}
	}
	deployments, err := cluster.List[appsv1.Deployment](ctx, s, &appsv1.DeploymentList{})
	if err != nil {
		return nil, err
	}
	for i := range deployments {
		d := &deployments[i]
		count("deployment", d, ptr.Deref(d.Spec.Replicas, 1),
			min(d.Status.ReadyReplicas, d.Status.UpdatedReplicas), d.Status.ObservedGeneration)
	}
	sets, err := cluster.List[appsv1.StatefulSet](ctx, s, &appsv1.StatefulSetList{})
	if err != nil {
		return nil, err
	}
	for i := range sets {
		d := &sets[i]
		count("statefulset", d, ptr.Deref(d.Spec.Replicas, 1), d.Status.ReadyReplicas, d.Status.ObservedGeneration)
	}
	daemons, err := cluster.List[appsv1.DaemonSet](ctx, s, &appsv1.DaemonSetList{})
	for i := range daemons {
		d := &daemons[i]
		count("daemonset", d, d.Status.DesiredNumberScheduled, d.Status.NumberReady, d.Status.ObservedGeneration)
	}
	return out, err
}
