package lossguard

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestWhatHasMoved: Services that agents will never connect to are not waited for, whatever their
// owners have written on them.
func TestWhatHasMoved(t *testing.T) {
	now := metav1.Now()
	for name, tt := range map[string]struct {
		change func(*corev1.Service)
		want   bool
	}{
		"moved":                  {func(*corev1.Service) {}, true},
		"not yet":                {func(svc *corev1.Service) { delete(svc.Annotations, v1alpha1.AnnotationMovedAt) }, false},
		"of another migration":   {func(svc *corev1.Service) { svc.Annotations[v1alpha1.LabelMigration] = "else" }, false},
		"is back":                {func(svc *corev1.Service) { svc.Spec.ClusterIP = "10.96.0.9" }, false},
		"at no address":          {at("None"), false},
		"at no address any more": {at(""), false},
		"outside of the ranges":  {at("192.0.2.7"), false},
		"ends":                   {func(svc *corev1.Service) { svc.DeletionTimestamp = &now }, false},
		"on its way":             {func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName }, false},
	} {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				v1alpha1.LabelMigration: "move", v1alpha1.AnnotationMovedAt: "1", v1alpha1.AnnotationTargetIP: "172.24.0.9",
			}},
			Spec: corev1.ServiceSpec{ClusterIP: "172.24.0.9"},
		}
		tt.change(svc)
		ranges := []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16"),
		}
		if got := moved(svc, "move", ranges); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// at has a Service say that it is where it is to go.
func at(address string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.ClusterIP, svc.Annotations[v1alpha1.AnnotationTargetIP] = address, address
	}
}
