//go:build apiserver && long

package lossguard_test

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestNodesLearnThatAPodHasGone: the run waits until the pod that was rolled has ended and every
// agent has reported since. Before anything has rolled there is nothing to wait for.
func TestNodesLearnThatAPodHasGone(t *testing.T) {
	p := newPlayer(t)
	ctx, stop := p.watch.Start(t.Context())
	defer stop()
	p.define()
	p.steady(ctx)
	agents := &lossguard.Agents{Set: &agentset.Set{Cluster: p.server.Cluster, Migration: "move", Wait: 30 * time.Second}, Watch: p.watch}
	step := func() engine.Step { return agents.Learned()[0].Steps[0] }
	if state, err := step().State(ctx); state != engine.Done {
		t.Errorf("before anything has rolled it is %v, %v", state, err)
	}
	p.single()
	old := p.pod(v1alpha1.RoleSingle)
	must(t, agents.Beside()(ctx))
	p.pod(v1alpha1.RoleSingle)
	if err := step().Verify(ctx); err == nil || !strings.Contains(err.Error(), "still answers") {
		t.Errorf("while two pods are there: %v", err)
	}
	must(t, p.server.Delete(ctx, old, client.GracePeriodSeconds(0)))
	learned := step()
	done := make(chan error, 1)
	go func() { done <- engine.Drive(ctx, learned) }()
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			must(t, err)
			if took := time.Since(began); took < 5*time.Second {
				t.Errorf("it ended after %s, while a request could be under way", took)
			}
			return
		case <-ctx.Done():
			t.Fatalf("the run ended: %v", context.Cause(ctx))
		case <-tick.C:
			p.tick(0)
		}
	}
}

// single is the Deployment that agents call, as its controller leaves it.
func (p *player) single() {
	p.Helper()
	labels := map[string]string{v1alpha1.LabelRole: v1alpha1.RoleSingle}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, Name: agentset.Single, Labels: map[string]string{v1alpha1.LabelMigration: "move"},
		},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/c:v1"}}},
			},
		},
	}
	must(p.T, p.server.Create(p.Context(), d))
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	must(p.T, p.server.Status().Update(p.Context(), d))
}
