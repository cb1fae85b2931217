package agentset

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	s.serves(&pod)
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

func singleRights() []access.Right {
	return access.In(
		v1alpha1.SystemNamespace,
		access.Named(access.Grant("apps", "deployments", "", "get create patch delete"), Single)...)
}
