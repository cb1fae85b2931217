//go:build apiserver && long

package nodes

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestSparesAreGivenAndTakenBack: what is named gets one more pod, on a new node, before any pod is
// evicted. A run that is killed right after that does not give another; rollback and finish give
// the number back exactly. One that an autoscaler owns is left alone.
func TestSparesAreGivenAndTakenBack(t *testing.T) {
	f := setup(t, atFinish, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Prepare.Deployments = []string{"shop/web", "shop/scaled"}
	})
	web := f.Deployment("web", 2)
	scaled := f.Deployment("scaled", 1)
	f.Must(server.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "scaled"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MaxReplicas:    3,
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "scaled"},
		},
	}))
	t.Cleanup(func() {
		hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "scaled"}}
		if err := server.Delete(context.Background(), hpa); err != nil {
			t.Error(err)
		}
	})
	has := func(d *appsv1.Deployment, n int32, one string) {
		t.Helper()
		now := &appsv1.Deployment{}
		f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(d), now))
		if *now.Spec.Replicas != n || now.Annotations[v1alpha1.AnnotationOneMore] != one {
			t.Errorf("deployment %s has %d replicas and %q, want %d and %q",
				d.Name, *now.Spec.Replicas, now.Annotations[v1alpha1.AnnotationOneMore], n, one)
		}
	}
	p, err := f.job.Look(t.Context())
	f.Must(err)
	if !migrationtest.Says(p.Findings, "RP3217", "HorizontalPodAutoscaler shop/scaled decides how many pods it has") {
		t.Errorf("findings: %+v", p.Findings)
	}

	ctx, cut := context.WithCancel(t.Context())
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		if e.Kind == engine.StepDone && e.Step == "scale/shop/web" {
			cut()
		}
	}
	if _, err := f.job.Apply(ctx, f.runner); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it was not cut off: %v", err)
	}
	has(web, 3, "m/2")
	has(scaled, 1, "")
	spares := 0
	for _, node := range f.ready("web") {
		if node == "c" || node == "d" {
			spares++
		}
	}
	if spares != 1 {
		t.Errorf("%d pods are on new nodes before the first drain: %v", spares, f.ready("web"))
	}
	f.runner.Sink = f.take
	f.Must(f.apply())
	has(web, 3, "m/2")
	f.Must(f.rollback())
	has(web, 2, "")
	f.Must(f.apply())
	has(web, 3, "m/2")
	f.Must(f.finish())
	has(web, 2, "")
	has(scaled, 1, "")
}
