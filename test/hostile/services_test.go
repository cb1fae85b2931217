package hostile

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestPeace is the scene without an attack: without it, a failing command would prove nothing.
func TestPeace(t *testing.T) {
	s := begin(t)
	s.expect(s.replumb("check", "-f", s.file), 0)
	s.apply(0)
	for _, key := range [][2]string{{tenantSpace, "mine"}, {otherSpace, "cart"}} {
		if ip := s.service(key[0], key[1]).Spec.ClusterIP; !strings.HasPrefix(ip, "172.24.") {
			t.Errorf("service %s/%s is at %s", key[0], key[1], ip)
		}
	}
	s.home()
}

// home takes the move back, which no attack may keep the Services of others from.
func (s *scene) home() {
	s.Helper()
	s.expect(s.replumb("rollback", migrationName, "--yes"), 0)
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		s.Errorf("service cart is at %s", ip)
	}
}

// noBridgeBut fails if an address leads to a bridge of any other Service than those, or to one that is in none of the ranges.
func (s *scene) noBridgeBut(allowed ...string) {
	s.Helper()
	all := &corev1.ServiceList{}
	s.must(s.List(s.Context(), all))
	for i := range all.Items {
		svc := &all.Items[i]
		of := svc.Namespace + "/" + svc.Annotations[v1alpha1.AnnotationService]
		for _, in := range svc.Status.LoadBalancer.Ingress {
			if !strings.HasPrefix(in.IP, "172.31.") && !strings.HasPrefix(in.IP, "172.24.") {
				s.Errorf("%s/%s answers at %s", svc.Namespace, svc.Name, in.IP)
			}
			if !slices.Contains(allowed, of) {
				s.Errorf("%s/%s, the bridge of %s, answers at %s", svc.Namespace, svc.Name, of, in.IP)
			}
		}
	}
}

// TestTenantMeanwhile: the tenant changes what is its own while the move is under way, with annotations that say another address, a bridge
// that loses its labels, and a moment in the future.
func TestTenantMeanwhile(t *testing.T) {
	s := begin(t)
	// The freeze is a fence for those who mean well; what holds here has to hold without it.
	s.write(strings.NewReplacer("  batch:", "  freeze: Disabled\n  batch:", "drain: 0s", "drain: 0s, overlap: Bridge").Replace(s.text()))
	s.apply(0)
	tenant := s.tenant()
	mine := s.service(tenantSpace, "mine")
	was := maps.Clone(mine.Annotations)
	s.change(tenant, mine, func(o metav1.Object) {
		notes := maps.Clone(was)
		notes[v1alpha1.AnnotationOldIP] = "172.31.3.7" // the other's, which is held for it
		notes[v1alpha1.AnnotationMovedAt] = time.Now().Add(100 * time.Hour).UTC().Format(time.RFC3339Nano)
		notes[v1alpha1.AnnotationOriginalSpec] = `{"type":"NodePort"}`
		o.SetAnnotations(notes)
	})
	made := s.service(tenantSpace, bridge.Name(mine.Name, mine.UID))
	s.change(tenant, made, func(o metav1.Object) {
		o.SetLabels(nil)
		o.SetAnnotations(map[string]string{v1alpha1.AnnotationTargetIP: "203.0.113.7"})
	})
	if err := tenant.Delete(s.Context(), &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "172.31.3.7"}}); err == nil {
		t.Error("a tenant can release the address of another")
	}
	s.apply(0)
	s.noBridgeBut(tenantSpace+"/mine", otherSpace+"/cart")
	bridged := s.service(tenantSpace, made.Name)
	if got := bridged.Status.LoadBalancer.Ingress; len(got) != 1 || got[0].IP != "172.31.5.5" {
		t.Errorf("the bridge of the tenant answers at %v", got)
	}
	s.home()
	if is := s.service(tenantSpace, "mine"); is.Spec.ClusterIP != "172.31.5.5" || is.Spec.Type != corev1.ServiceTypeClusterIP {
		t.Errorf("service mine is of type %s at %s", is.Spec.Type, is.Spec.ClusterIP)
	}
	s.noBridgeBut()
}

// change writes an object as another would.
func (s *scene) change(as client.Client, o client.Object, change func(metav1.Object)) {
	s.Helper()
	was := o.DeepCopyObject().(client.Object)
	change(o)
	s.must(as.Patch(s.Context(), o, client.MergeFrom(was)))
}
