package spare

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// builder of clients of a cluster that has Migration m.
func builder(t *testing.T) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}})
}

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
			c := builder(t).WithObjects(d).WithReturnManagedFields().WithInterceptorFuncs(interceptor.Funcs{
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

// TestWrittenAnew: who writes a Deployment anew with the number that is there, and without what it
// does not know, leaves the pod and takes the annotation, as kubeadm upgrade does. There is no
// second pod more then, and the first one goes in the end.
func TestWrittenAnew(t *testing.T) {
	for name, tt := range map[string]struct {
		again     bool // it is scaled again before the end
		since     int32
		wantFinal int32
	}{
		"and finished":             {since: 2, wantFinal: 1},
		"and scaled again":         {again: true, since: 2, wantFinal: 1},
		"and scaled by who did so": {since: 4, wantFinal: 4},
	} {
		t.Run(name, func(t *testing.T) {
			d := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
				Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}, Status: appsv1.DeploymentStatus{AvailableReplicas: 2},
			}
			key, c := client.ObjectKeyFromObject(d), builder(t).WithObjects(d).Build()
			run := func(step engine.Step) {
				t.Helper()
				plan := &engine.Plan{Phases: []engine.Phase{{Groups: engine.InOrder(step)}}}
				if err := (&engine.Runner{Deadline: 5 * time.Second}).Run(t.Context(), plan); err != nil {
					t.Fatal(err)
				}
			}
			have := func(n int32) *appsv1.Deployment {
				t.Helper()
				now := &appsv1.Deployment{}
				if err := c.Get(t.Context(), key, now); err != nil {
					t.Fatal(err)
				}
				if *now.Spec.Replicas != n {
					t.Fatalf("it has %d pods, want %d", *now.Spec.Replicas, n)
				}
				return now
			}
			run(up(c, "m", key, false))
			anew := have(2)
			anew.Annotations, anew.Spec.Replicas = nil, ptr.To(tt.since)
			if err := c.Update(t.Context(), anew); err != nil {
				t.Fatal(err)
			}
			if tt.again {
				run(up(c, "m", key, false))
				have(2)
			}
			run(Back(c, "m"))
			if now := have(tt.wantFinal); now.Annotations[v1alpha1.AnnotationOneMore] != "" {
				t.Errorf("it has annotations %v", now.Annotations)
			}
			if left, err := recall(t.Context(), c, "m"); err != nil || len(left) > 0 {
				t.Errorf("the Migration still has %v on record, %v", left, err)
			}
		})
	}
}
