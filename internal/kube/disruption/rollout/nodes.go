package rollout

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// away reports whether a node is not ready: no pod is started, or known to have ended, there.
func away(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionTrue
		}
	}
	return false
}

// lost are the nodes that are not ready among those of pods that are not ready, or do not end.
func (s *restartStep) lost(ctx context.Context, pods []corev1.Pod) (map[string]bool, error) {
	lost := map[string]bool{}
	for i := range pods {
		name := pods[i].Spec.NodeName
		if _, asked := lost[name]; asked || name == "" || podReady(&pods[i]) {
			continue
		}
		lost[name] = false
		err := each(ctx, s.Client, &corev1.NodeList{}, func(n *corev1.Node) { lost[n.Name] = away(n) },
			client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, name)})
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", name, err)
		}
	}
	return lost, nil
}

// waitsForNode reports whether a pod is neither renewed nor gone before its node is ready again.
func waitsForNode(kind string, pod *corev1.Pod, away map[string]bool) bool {
	return away[pod.Spec.NodeName] && (kind == KindDaemonSet || !pod.DeletionTimestamp.IsZero())
}

// present is a DaemonSet as it is on ready nodes; other workloads are returned as they are.
func present(a adapter, pods []corev1.Pod, away map[string]bool) adapter {
	d, ok := a.(daemonSetAdapter)
	if !ok {
		return a
	}
	missing := map[string]bool{}
	for i := range pods {
		if p := &pods[i]; away[p.Spec.NodeName] && !podReady(p) && metav1.IsControlledBy(p, d.DaemonSet) {
			missing[p.Spec.NodeName] = true
		}
	}
	if len(missing) == 0 {
		return a
	}
	here := d.DeepCopy()
	here.Status.DesiredNumberScheduled -= int32(len(missing)) //nolint:gosec // fewer than there are nodes
	return daemonSetAdapter{here}
}
