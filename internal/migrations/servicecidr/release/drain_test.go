package release

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestDrainGoesByReservations: what its owner writes on a Service never has it moved earlier than
// its address was reserved.
func TestDrainGoesByReservations(t *testing.T) {
	left := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	text := func(at time.Time) string { return at.Format(time.RFC3339Nano) }
	for name, tt := range map[string]struct {
		notes map[string]string
		want  time.Time
	}{
		"as replumb left it":     {map[string]string{v1alpha1.AnnotationMovedAt: text(left.Add(20 * time.Millisecond))}, left.Add(20 * time.Millisecond)},
		"nothing is noted":       {nil, left},
		"a little earlier":       {map[string]string{v1alpha1.AnnotationMovedAt: text(left.Add(-50 * time.Second))}, left},
		"long ago":               {map[string]string{v1alpha1.AnnotationMovedAt: text(left.Add(-time.Hour))}, left},
		"in a time yet to come":  {map[string]string{v1alpha1.AnnotationMovedAt: text(left.Add(time.Hour))}, left},
		"something that no time": {map[string]string{v1alpha1.AnnotationMovedAt: "yesterday"}, left},
	} {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme} {
			if err := add(scheme); err != nil {
				t.Fatal(err)
			}
		}
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1", Annotations: tt.notes}}
		hold := bridge.Hold{
			Migration: "m", Address: netip.MustParseAddr("10.96.3.7"),
			Bridge: types.NamespacedName{Namespace: "shop", Name: bridge.Name("cart", "u1")},
		}
		ip := hold.Build()
		ip.CreationTimestamp = metav1.NewTime(left)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(svc, ip).Build()
		if at, err := lastMove(t.Context(), c, "m"); err != nil || !at.Equal(tt.want) {
			t.Errorf("%s: moved at %s, %v, want %s", name, at, err, tt.want)
		}
	}
}
