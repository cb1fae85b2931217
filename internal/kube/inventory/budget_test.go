package inventory

import (
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestNeverAllows(t *testing.T) {
	one := policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	none := policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0))}
	all := policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromString("100%"))}
	// What Kubernetes writes for maxUnavailable over a DaemonSet.
	failed := policyv1.PodDisruptionBudgetStatus{Conditions: []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: "daemonsets.apps does not implement the scale subresource",
	}}}
	busy := policyv1.PodDisruptionBudgetStatus{ExpectedPods: 2, Conditions: []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
	}}}
	for _, tt := range []struct {
		name   string
		spec   policyv1.PodDisruptionBudgetSpec
		status policyv1.PodDisruptionBudgetStatus
		want   string
	}{
		{"one at a time", one, busy, ""},
		{"none ever", none, busy, "maxUnavailable is 0"},
		{"all always", all, busy, "minAvailable is 100% of 2 pods"},
		{"over nothing", none, policyv1.PodDisruptionBudgetStatus{}, ""},
		{"over a DaemonSet", one, failed, "daemonsets.apps does not implement the scale subresource"},
	} {
		if got := NeverAllows(&policyv1.PodDisruptionBudget{Spec: tt.spec, Status: tt.status}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
