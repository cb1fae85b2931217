//go:build apiserver && long

package servicecidr

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestOwnerTakesRestartBack: an operator writes the template of its StatefulSet anew, and lets no
// pod go from then on. apply ends all the same, says who it was, and does not restart it again;
// finish goes on.
func TestOwnerTakesRestartBack(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.ServiceCIDR.Refresh.Timeout = &metav1.Duration{Duration: 3 * time.Second}
	})
	f.service("cart", at("10.96.3.7"))
	set, budget := f.stateful()
	var took sync.WaitGroup
	times := 0
	ctx, stop := context.WithCancel(t.Context())
	took.Go(func() {
		for ctx.Err() == nil {
			if back, err := takeBack(ctx, set, budget); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			} else if back {
				times++
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	for range 2 {
		f.apply()
	}
	f.again()
	p, err := f.job.Examine(t.Context())
	f.must(err)
	preview, err := f.job.PreviewFinish(t.Context(), p)
	f.must(err)
	f.must(f.finish())
	stop()
	took.Wait()
	if known := f.job.Migration.Status.TakenBack; len(known) != 1 || known[0].Workload != "StatefulSet shop/db" || known[0].By != "db-operator" {
		t.Errorf("the Migration says %+v", known)
	}
	if times != 1 {
		t.Errorf("it was restarted %d times", times)
	}
	if said := strings.Join(preview.Finals, "\n"); !strings.Contains(said, "pod shop/db-0") || !strings.Contains(said, "db-operator") {
		t.Errorf("finish asks:\n%s", said)
	}
	if said := strings.Join(preview.Finals, "\n"); !strings.Contains(said, "clients that come once a day may not have been seen") {
		t.Errorf("finish does not say how young the overlap is:\n%s", said)
	}
	notes := ""
	for _, e := range f.events {
		notes += e.Note
	}
	if !strings.Contains(notes, "have its owner restart them") {
		t.Errorf("it says %q", notes)
	}
}

// stateful is a StatefulSet with a pod of before, and a budget that lets it go.
func (f *fixture) stateful() (*appsv1.StatefulSet, *policyv1.PodDisruptionBudget) {
	f.Helper()
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}}
	selector := &metav1.LabelSelector{MatchLabels: meta.Labels}
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}
	set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
		Selector: selector, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels}, Spec: spec},
	}}
	f.must(server.Create(f.Context(), set, client.FieldOwner("db-operator")))
	yes := true
	pod := &corev1.Pod{ObjectMeta: *meta.DeepCopy(), Spec: spec}
	pod.Name = "db-0"
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: set.UID, Controller: &yes}}
	f.must(server.Create(f.Context(), pod))
	since := metav1.NewTime(time.Now())
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &since,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", Image: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
		}},
	}
	f.must(server.Status().Update(f.Context(), pod))
	none := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: &none},
	}
	f.must(server.Create(f.Context(), budget))
	f.must(allow(f.Context(), budget, 1))
	return set, budget
}

// allow plays the disruption controller.
func allow(ctx context.Context, budget *policyv1.PodDisruptionBudget, n int32) error {
	budget.Status = policyv1.PodDisruptionBudgetStatus{
		ObservedGeneration: budget.Generation, DisruptionsAllowed: n, CurrentHealthy: 1 + n, DesiredHealthy: 1, ExpectedPods: 1,
	}
	return server.Status().Update(ctx, budget)
}

// takeBack plays the operator and the controller of StatefulSets.
func takeBack(ctx context.Context, set *appsv1.StatefulSet, budget *policyv1.PodDisruptionBudget) (back bool, err error) {
	now := &appsv1.StatefulSet{}
	if err := server.Get(ctx, client.ObjectKeyFromObject(set), now); err != nil {
		return false, err
	}
	if len(now.Spec.Template.Annotations) > 0 {
		if err := allow(ctx, budget, 0); err != nil {
			return false, err
		}
		now.Spec.Template.Annotations = nil
		if err := server.Update(ctx, now, client.FieldOwner("db-operator")); err != nil {
			return false, err
		}
		back = true
	}
	now.Status = appsv1.StatefulSetStatus{
		ObservedGeneration: now.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1, CurrentReplicas: 1,
	}
	err = server.Status().Update(ctx, now)
	if apierrors.IsConflict(err) {
		err = nil
	}
	return back, err
}
