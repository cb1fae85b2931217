//go:build apiserver && long

package freeze

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestKeepTypeIsAskedFor: whether the policy is in force is told beside a freeze of the Service
// kubernetes, which has moved and keeps its address as that of a load balancer, or whose owner has
// broken the glass. Nothing is told of a policy that is not there.
func TestKeepTypeIsAskedFor(t *testing.T) {
	s, _ := frozen(t)
	keep := KeepType{Client: s, Migration: "shop"}
	svc := &corev1.Service{}
	if err := s.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "kubernetes"}, svc); err != nil {
		t.Fatal(err)
	}
	write := func(patch string) {
		t.Helper()
		err := s.Patch(context.WithoutCancel(t.Context()), svc, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner(v1alpha1.FieldManager))
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		write(`{"metadata":{"annotations":null,"labels":{"replumb.dev/break-glass":null}},
			"spec":{"type":"ClusterIP","loadBalancerClass":null,"allocateLoadBalancerNodePorts":null,"externalTrafficPolicy":null}}`)
	})
	write(`{"metadata":{"annotations":{"replumb.dev/migration":"shop","replumb.dev/moved-at":"2026-01-01T00:00:00Z"}},
		"spec":{"type":"LoadBalancer","loadBalancerClass":"replumb.dev/bridge","allocateLoadBalancerNodePorts":false}}`)
	step := keep.Step()
	if err := keep.inForce(t.Context()); err == nil {
		t.Error("it is said to be in force before it is there")
	}
	run(t, step)
	write(`{"metadata":{"labels":{"replumb.dev/break-glass":"true"}}}`)
	if err := keep.inForce(t.Context()); err != nil {
		t.Errorf("with the glass broken: %v", err)
	}
	run(t, keep.Undo())
	run(t, step) // of an earlier binding the API server may still know
	run(t, keep.Undo())
}
