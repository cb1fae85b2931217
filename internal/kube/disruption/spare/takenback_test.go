package spare

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/replumb/replumb/internal/engine"
)

// TestOwnerTakesThePodBack: an owner of a Deployment's number of pods writes it as it knows it,
// with the annotation or without. The run goes on, and says so.
func TestOwnerTakesThePodBack(t *testing.T) {
	for name, back := range map[string]func(*appsv1.Deployment){
		"the number":           func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](1) },
		"the number and notes": func(d *appsv1.Deployment) { d.Spec.Replicas, d.Annotations = ptr.To[int32](1), nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns"},
				Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}, Status: appsv1.DeploymentStatus{AvailableReplicas: 1},
			}
			key, patches := client.ObjectKeyFromObject(d), 0
			c := fake.NewClientBuilder().WithObjects(d).WithReturnManagedFields().WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					if err := c.Patch(ctx, o, p, opts...); err != nil {
						return err
					}
					patches++
					now := &appsv1.Deployment{}
					if err := c.Get(ctx, key, now); err != nil {
						return err
					}
					back(now)
					return c.Update(ctx, now, client.FieldOwner("dns-operator"))
				},
			}).Build()
			step := up(c, "m", key, false)
			plan := &engine.Plan{Phases: []engine.Phase{{Groups: engine.InOrder(step)}}}
			if err := (&engine.Runner{Deadline: 5 * time.Second}).Run(t.Context(), plan); err != nil {
				t.Fatal(err)
			}
			note := step.(engine.Noter).Note()
			if patches != 1 || !strings.Contains(note, "deployment kube-system/dns has no pod more") || !strings.Contains(note, "dns-operator") {
				t.Errorf("%d patches, it says %q", patches, note)
			}
		})
	}
}
