package rollout

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
)

// elsewhere returns nil if a DaemonSet can do without its pod on this node: it has those that
// belong on others, or some, and what is not ready there does not start. Its status cannot be
// asked: its controller leaves it as it is when a node is closed (syncNodeUpdate in
// k8s.io/kubernetes/pkg/controller/daemon).
func (s *drainStep) elsewhere(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference) error {
	want, err := s.wantedElsewhere(ctx, p, ref)
	if err != nil || want == 0 || !podReady(p) {
		return err
	}
	there, ready, starting := 0, 0, 0
	err = each(ctx, s.Client, &corev1.PodList{}, func(o *corev1.Pod) {
		owner := metav1.GetControllerOfNoCopy(o)
		switch {
		case owner == nil || owner.UID != ref.UID || ended(o) || o.Spec.NodeName == p.Spec.NodeName:
			return
		case podReady(o):
			ready++
		case s.now().Sub(o.CreationTimestamp.Time) < s.timeout():
			starting++
		}
		there++
	}, client.InNamespace(p.Namespace))
	if err != nil {
		return fmt.Errorf("pods of %s %s: %w", ref.Kind, ref.Name, err)
	}
	if ready >= want || ready > 0 && starting == 0 && there >= want {
		return nil
	}
	return engine.NotYet("%s %s/%s has %d of %d pods ready on other nodes", ref.Kind, p.Namespace, ref.Name, ready, want)
}

// wantedElsewhere is how many other nodes take a pod of a DaemonSet, cordoned or not, and are ready
// (NodeShouldRunDaemonPod in k8s.io/kubernetes/pkg/controller/daemon).
func (s *drainStep) wantedElsewhere(ctx context.Context, p *corev1.Pod, ref *metav1.OwnerReference) (want int, err error) {
	set := &appsv1.DaemonSet{}
	err = s.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: ref.Name}, set)
	switch {
	case apierrors.IsNotFound(err) || err == nil && set.UID != ref.UID:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("daemonset %s/%s: %w", p.Namespace, ref.Name, err)
	}
	err = each(ctx, s.Client, &corev1.NodeList{}, func(n *corev1.Node) {
		if n.Name != p.Spec.NodeName && !away(n) && workload.Fits(&set.Spec.Template.Spec, n, corev1.TaintNodeUnschedulable) {
			want++
		}
	})
	if err != nil {
		return 0, fmt.Errorf("nodes that take pods of daemonset %s/%s: %w", p.Namespace, ref.Name, err)
	}
	return want, nil
}
