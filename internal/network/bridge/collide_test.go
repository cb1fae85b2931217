package bridge

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestBridgeOfTwo: the names of two Services that begin alike can make the same name of a bridge.
// Which of them it stands in for is not known, and that is not taken for in step.
func TestBridgeOfTwo(t *testing.T) {
	long := strings.Repeat("a", 60)
	first, second := alike(long)
	v := newView(&Follower{})
	for _, svc := range []*corev1.Service{first, second} {
		if err := v.services.Indexer.Add(svc); err != nil {
			t.Fatal(err)
		}
	}
	key := types.NamespacedName{Namespace: "shop", Name: Name(first.Name, first.UID)}
	if d := v.look(key); d != nil {
		t.Error("nothing is reserved, and it is looked after")
	}
	v.hold(t, "10.96.3.7", first)
	if svc, err := v.standing(key); err != nil || svc != first {
		t.Errorf("it stands in for %v, %v", svc, err)
	}
	v.hold(t, "10.96.3.8", second)
	d := v.look(key)
	if d == nil {
		t.Fatal("in step")
	}
	if err := d.write(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "shop/"+first.Name) || !strings.Contains(err.Error(), "shop/"+second.Name) {
		t.Errorf("got %v", err)
	}
}

// hold reserves an address for a Service.
func (s *view) hold(t *testing.T, address string, of *corev1.Service) {
	t.Helper()
	err := s.holds.Indexer.Add(&networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: address, Labels: map[string]string{v1alpha1.LabelRole: v1alpha1.RoleHold},
			Annotations: map[string]string{v1alpha1.AnnotationServiceUID: string(of.UID)},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Namespace: of.Namespace, Name: of.Name}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// alike are two Services whose bridges have one name.
func alike(name string) (first, second *corev1.Service) {
	seen := map[string]*corev1.Service{}
	for i := 0; ; i++ {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name + strconv.Itoa(i%10), UID: types.UID(strconv.Itoa(i)),
		}}
		of := Name(svc.Name, svc.UID)
		if other := seen[of]; other != nil && other.Name != svc.Name {
			return other, svc
		}
		seen[of] = svc
	}
}
