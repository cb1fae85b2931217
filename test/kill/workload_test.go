package kill

import (
	"context"
	"hash/fnv"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// enrich adds what makes a run wait for a few seconds: a Service with a node port, and a Deployment whose pod carries old
// addresses.
func (c *cluster) enrich(t *testing.T) {
	t.Helper()
	svc := service(shop, "at-nodes", "10.96.3.10")
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort = 30080, 30053
	c.add(t, svc)
	labels := map[string]string{"app": "web"}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
			},
		},
	}
	c.add(t, d)
	must(t, c.roll(t.Context(), d, time.Now().Add(-time.Hour)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if c.Get(ctx, client.ObjectKeyFromObject(d), d) == nil {
				_ = c.roll(ctx, d, time.Now()) // the next round looks again
			}
		}, 50*time.Millisecond)
	}()
	c.relieve = func() {
		cancel()
		<-done
		c.relieve = nil
	}
}

// roll plays the controllers of Deployments and ReplicaSets, and a kubelet: a template has a ReplicaSet with one pod, which
// runs since at.
func (c *cluster) roll(ctx context.Context, d *appsv1.Deployment, at time.Time) error {
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt])) // a hash takes everything
	name := d.Name + "-" + strconv.FormatUint(uint64(h.Sum32()), 36)
	labels := map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: name}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: d.Spec.Template},
	}
	rs.Spec.Template.Labels = labels
	if err := client.IgnoreAlreadyExists(c.Create(ctx, rs)); err != nil {
		return err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(rs), rs); err != nil {
		return err
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: name, Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
		},
		Spec: d.Spec.Template.Spec,
	}
	if err := c.Create(ctx, p); err == nil {
		p.Status = runningSince(at, "10.244.0.5")
		if err := c.Status().Update(ctx, p); err != nil {
			return err
		}
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace(d.Namespace), client.MatchingLabels{"app": "web"}); err != nil {
		return err
	}
	for i := range pods.Items {
		if pods.Items[i].Name != name {
			if err := client.IgnoreNotFound(c.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0))); err != nil {
				return err
			}
		}
	}
	status := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue},
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"},
		},
	}
	if d.Status.ObservedGeneration == status.ObservedGeneration && d.Status.UpdatedReplicas == 1 {
		return nil
	}
	d.Status = status
	return c.Status().Update(ctx, d)
}
