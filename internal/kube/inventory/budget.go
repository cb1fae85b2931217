package inventory

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NeverAllows is the rule by which a PodDisruptionBudget forbids the eviction even of healthy pods,
// or empty. Percentages are rounded up as in getExpectedPodCount in k8s.io/kubernetes
// pkg/controller/disruption/disruption.go.
func NeverAllows(b *policyv1.PodDisruptionBudget) string {
	// The controller allows nothing where it cannot tell how many pods there should be, as with
	// maxUnavailable of a DaemonSet (failSafe in the same file).
	failed := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if failed != nil && failed.Status == metav1.ConditionFalse && failed.Reason == policyv1.SyncFailedReason {
		return failed.Message
	}
	expected := int(b.Status.ExpectedPods)
	if b.Status.DisruptionsAllowed > 0 || expected == 0 {
		return ""
	}
	if m := b.Spec.MaxUnavailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, expected, true); err == nil && n == 0 {
			return "maxUnavailable is " + m.String()
		}
	}
	if m := b.Spec.MinAvailable; m != nil {
		if n, err := intstr.GetScaledValueFromIntOrPercent(m, expected, true); err == nil && n >= expected {
			return fmt.Sprintf("minAvailable is %s of %d pods", m.String(), expected)
		}
	}
	return ""
}
