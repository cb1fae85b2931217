package agentset

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/workload"
)

// Single is the Service with one endpoint in the whole cluster, and its Deployment. It shows what
// the Service with an endpoint on every node cannot: calls from a node without one.
const Single = "single"

// moved is for how many seconds the one pod stays on a node that is not ready, or that it cannot be
// reached on.
const moved = 5

// single is that Service, without an address. Nothing but HTTP is asked of it.
func (s objects) single() *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: s.meta(v1alpha1.SystemNamespace, Single, v1alpha1.RoleSingle),
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleSingle},
			Ports:    []corev1.ServicePort{port("http", 80, corev1.ProtocolTCP, httpPort)},
		},
	}
}

// answers is the Deployment with the one pod, which has no account, and answers. Another one takes
// its place before it ends.
func (s objects) answers([]string) ([]client.Object, error) {
	pod := s.pod([]string{"answer"}, v1alpha1.FromPod)
	serves(&pod, rolledLameDuck)
	pod.Containers[0].Env = nil
	pod.ServiceAccountName, pod.AutomountServiceAccountToken = "", ptr.To(false)
	pod.Tolerations = append([]corev1.Toleration{
		{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	}, workload.Leaves(moved)...)
	m := s.meta(v1alpha1.SystemNamespace, Single, v1alpha1.RoleSingle)
	pods, err := workload.Template(m.Labels, pod)
	if err != nil {
		return nil, fmt.Errorf("deployment %s: %w", Single, err)
	}
	of := map[string]string{v1alpha1.LabelRole: v1alpha1.RoleSingle}
	return []client.Object{workload.Deployment(m, of, 1, 0, pods)}, nil
}

// rolledEvery is the least time between two rolls of the one pod: the former has ended by then.
const rolledEvery = 2 * (rolledLameDuck + echoDrain) * time.Second

// RollSingle puts another pod in the place of the one behind Single, as rollouts of others do. The
// former answers for rolledLameDuck and echoDrain after it was told to end, as pods with a graceful
// end do: only a node that has not learned by then still leads there.
//
// Nothing is rolled while the last roll is under way, nor without that Deployment.
func (s *Set) RollSingle(ctx context.Context) (rolled bool, err error) {
	d := &appsv1.Deployment{}
	err = s.Cluster.Get(ctx, client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Single}, d)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deployment %s: %w", Single, err)
	}
	now := s.now()
	last, err := time.Parse(time.RFC3339Nano, d.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt])
	if err == nil && now.Sub(last) < rolledEvery || !whole(d) || d.Labels[v1alpha1.LabelMigration] != s.Migration {
		return false, nil
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": d.ResourceVersion},
		"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{v1alpha1.AnnotationRestartedAt: now.UTC().Format(time.RFC3339Nano)},
		}}},
	})
	if err != nil {
		return false, fmt.Errorf("deployment %s: %w", Single, err)
	}
	err = s.Cluster.Patch(ctx, d, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the next restart rolls it
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("deployment %s: %w", Single, err)
	}
	return true, nil
}

// whole reports whether all pods of a Deployment are those of its template, and ready.
func whole(d *appsv1.Deployment) bool {
	st, want := d.Status, ptr.Deref(d.Spec.Replicas, 1)
	return st.ObservedGeneration >= d.Generation && st.Replicas == want && st.UpdatedReplicas == want && st.AvailableReplicas == want
}

func singleRights() []access.Right {
	return access.In(
		v1alpha1.SystemNamespace,
		access.Named(access.Grant("apps", "deployments", "", "get create patch delete"), Single)...)
}
