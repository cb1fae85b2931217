//go:build long

package hostile

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// itself is a way in which Services move that keep their old address themselves.
type itself struct {
	form v1alpha1.OverlapForm
	etcd bool
}

func (w itself) String() string {
	if w.etcd {
		return "etcd " + string(w.form)
	}
	return "hop " + string(w.form)
}

func waysItself() []itself {
	return []itself{{v1alpha1.OverlapExternalIP, false}, {v1alpha1.OverlapExternalIP, true}, {v1alpha1.OverlapLoadBalancer, true}}
}

// moveItself has Services move in a way, without the freeze: what holds has to hold without it.
func (s *scene) moveItself(way itself) {
	s.Helper()
	how := "drain: 0s, overlap: " + string(way.form)
	if way.etcd {
		how += fmt.Sprintf(", strategies: {clusterIP: Etcd, nodePort: Etcd}, etcd: {endpoints: [%q]}", s.Etcd)
	}
	s.write(strings.NewReplacer("  batch:", "  freeze: Disabled\n  batch:", "drain: 0s", how).Replace(s.text()))
}

// The other's Service and its addresses before the move.
const otherOld = "172.31.3.7"

// ownAttack is what the tenant does to a Service of its own that keeps its old address itself.
type ownAttack struct {
	name, old string
	do        func(s *scene, tenant client.Client, svc *corev1.Service, way itself)
	// gone says that the Service does not stay in the migration.
	gone bool
}

// stays reports whether a Service cannot come back any more: its owner has deleted it, or made it another type, which does not hop.
func (a ownAttack) stays(way itself) bool {
	return a.name == "ending" || a.name == "classed" && way.form == v1alpha1.OverlapExternalIP
}

// ownAttacks are tried at once. Each would gain what its comment says if replumb believed it.
func ownAttacks() []ownAttack {
	take := func(_ *scene, svc *corev1.Service, a string) { ownaddress.Remove(svc, netip.MustParseAddr(a)) }
	return []ownAttack{
		// The migration would stand still, or leave an address reserved for ever.
		{name: "off", old: "172.31.5.20", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() { take(s, svc, "172.31.5.20") })
		}},
		// The other's old address would be added, moved to, or released with this one.
		{name: "swapped", old: "172.31.5.21", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() {
				take(s, svc, "172.31.5.21")
				svc.Spec.ExternalIPs = []string{otherOld}
				svc.Annotations[v1alpha1.AnnotationOldIP] = otherOld
				svc.Annotations[v1alpha1.AnnotationMovedAt] = time.Now().Add(100 * time.Hour).UTC().Format(time.RFC3339Nano)
			})
		}},
		// An address outside, of the kind that is replumb's own.
		{name: "outside", old: "172.31.5.22", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() {
				svc.Annotations[v1alpha1.AnnotationOldIP], svc.Annotations[v1alpha1.AnnotationTargetIP] = "203.0.113.99", "10.96.0.10"
				svc.Annotations[v1alpha1.AnnotationOriginalSpec] = `{"type":"NodePort","externalIPs":["203.0.113.98"]}`
			})
		}},
		// The migration would forget it, and what it has reserved.
		{name: "bare", old: "172.31.5.23", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() {
				take(s, svc, "172.31.5.23")
				svc.Annotations = nil
			})
		}},
		// A load balancer of that class would be taken for the tenant's own, which stays where it is and keeps the range in use.
		{name: "silent", old: "172.31.5.27", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() { svc.Annotations = nil })
		}},
		// The form would be read off the Service, in the place of what is recorded.
		{name: "classed", old: "172.31.5.24", do: func(s *scene, tenant client.Client, svc *corev1.Service, way itself) {
			s.edit(tenant, svc, func() {
				take(s, svc, "172.31.5.24")
				if way.form == v1alpha1.OverlapLoadBalancer {
					svc.Spec.ExternalIPs = []string{"172.31.5.24"}
					return
				}
				svc.Spec.Type, svc.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, ptr.To(v1alpha1.LoadBalancerClass)
				svc.Spec.AllocateLoadBalancerNodePorts, svc.Spec.ExternalTrafficPolicy = ptr.To(false), corev1.ServiceExternalTrafficPolicyCluster
			})
		}},
		// A Service that does not go would hold everyone up.
		{name: "ending", old: "172.31.5.25", do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.edit(tenant, svc, func() { svc.Finalizers = []string{"example.com/never"} })
			s.must(tenant.Delete(s.Context(), svc))
		}},
		// Another Service would have what was reserved for the first.
		{name: "reborn", old: "172.31.5.26", gone: true, do: func(s *scene, tenant client.Client, svc *corev1.Service, _ itself) {
			s.must(tenant.Delete(s.Context(), svc))
			again := plain(tenantSpace, "reborn", "172.31.5.26")
			again.Annotations = svc.Annotations
			if err := tenant.Create(s.Context(), again.DeepCopy()); err == nil {
				s.Error("a Service was made at an address that is reserved for one that is gone")
			}
			again.Spec.ClusterIP = "10.96.77.2" // in a range that does not move: a rollback asks about those in the new one
			s.must(tenant.Create(s.Context(), again))
		}},
	}
}

// edit writes a Service of the tenant's.
func (s *scene) edit(tenant client.Client, svc *corev1.Service, change func()) {
	s.Helper()
	was := svc.DeepCopy()
	change()
	svc.Status = was.Status // which it may not write
	s.must(tenant.Patch(s.Context(), svc, client.MergeFrom(was)))
}

// attackItself moves Services, has the tenant attack, and returns what it wrote as addresses beside those that it had.
func (s *scene) attackItself(way itself) (attacks []ownAttack, own []string) {
	s.Helper()
	s.moveItself(way)
	attacks = ownAttacks()
	for _, a := range attacks {
		s.add(plain(tenantSpace, a.name, a.old))
	}
	s.apply(0)
	ctx := context.WithoutCancel(s.Context())
	s.Cleanup(func() {
		never := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		_ = s.admin.Patch(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "ending"}}, never)
	})
	tenant := s.tenant()
	for _, a := range attacks {
		svc := s.service(tenantSpace, a.name)
		if form, _ := ownaddress.FormOf(svc, netip.MustParseAddr(a.old)); form != way.form {
			s.Fatalf("service %s keeps %s as %q, want %s", a.name, a.old, form, way.form)
		}
		a.do(s, tenant, svc, way)
	}
	squatter := plain(tenantSpace, "squatter", "10.96.77.1") // CVE-2020-8554, which no migration adds to
	squatter.Spec.ExternalIPs = []string{otherOld}
	s.must(tenant.Create(s.Context(), squatter))
	return attacks, []string{"squatter " + otherOld, "swapped " + otherOld, "classed 172.31.5.24"}
}

// answersAsReserved fails if any Service answers at an address that is not reserved for it, those aside that the tenant
// gave its own.
func (s *scene) answersAsReserved(own []string) {
	s.Helper()
	all := &corev1.ServiceList{}
	s.must(s.List(s.Context(), all))
	for i := range all.Items {
		svc := &all.Items[i]
		at := slices.Clone(svc.Spec.ExternalIPs)
		for _, in := range svc.Status.LoadBalancer.Ingress {
			at = append(at, in.IP)
		}
		for _, a := range at {
			ip := &networkingv1.IPAddress{}
			err := s.Get(s.Context(), types.NamespacedName{Name: a}, ip)
			key, held := bridge.HeldFor(ip)
			mine := err == nil && held && (key.Name == bridge.Name(svc.Name, svc.UID) || key.Name == svc.Name) && key.Namespace == svc.Namespace
			if lied := svc.Namespace == tenantSpace && slices.Contains(own, svc.Name+" "+a); !mine && !lied {
				s.Errorf("service %s/%s answers at %s, which is held for %s (%v)", svc.Namespace, svc.Name, a, key, err)
			}
		}
	}
}

// othersKeep fails unless the other's Service has moved and keeps its old address.
func (s *scene) othersKeep(way itself) {
	s.Helper()
	cart := s.service(otherSpace, "cart")
	form, _ := ownaddress.FormOf(cart, netip.MustParseAddr(otherOld))
	if !strings.HasPrefix(cart.Spec.ClusterIP, "172.24.") || form != way.form {
		s.Errorf("service cart is at %s and keeps its old address as %q", cart.Spec.ClusterIP, form)
	}
}

// TestTenantKeepsItself: the tenant changes Services of its own that keep their old address themselves, in each form. An address that is taken off is put
// on again; no Service is given an address that is not reserved for it, and those of others go there, back, and to the end of finish.
func TestTenantKeepsItself(t *testing.T) {
	for _, way := range waysItself() {
		t.Run(way.String(), func(t *testing.T) {
			t.Run("back", func(t *testing.T) {
				s := begin(t)
				attacks, own := s.attackItself(way)
				s.apply(0)
				s.othersKeep(way)
				s.answersAsReserved(own)
				for _, a := range attacks {
					if _, keeps := ownaddress.FormOf(s.service(tenantSpace, a.name), netip.MustParseAddr(a.old)); keeps == a.gone {
						t.Errorf("service %s answers at %s: %t", a.name, a.old, keeps)
					}
				}
				s.home()
				for _, a := range attacks {
					if at := s.service(tenantSpace, a.name).Spec.ClusterIP; at != a.old && !a.gone && !a.stays(way) {
						t.Errorf("service %s was at %s and is back at %s", a.name, a.old, at)
					}
				}
				s.answersAsReserved(own)
				s.nothingHeld()
			})
			t.Run("to the end", func(t *testing.T) {
				s := begin(t)
				_, own := s.attackItself(way)
				s.expect(s.replumb("finish", migrationName, "--yes"), 0)
				if cart := s.service(otherSpace, "cart"); len(cart.Spec.ExternalIPs) > 0 || cart.Spec.Type != corev1.ServiceTypeClusterIP {
					t.Errorf("service cart is of type %s and answers at %v", cart.Spec.Type, cart.Spec.ExternalIPs)
				}
				s.answersAsReserved(own)
				s.nothingHeld()
			})
		})
	}
}

// nothingHeld fails if an address is still reserved.
func (s *scene) nothingHeld() {
	s.Helper()
	held := &networkingv1.IPAddressList{}
	s.must(s.List(s.Context(), held, client.HasLabels{v1alpha1.LabelRole}))
	for i := range held.Items {
		s.Errorf("address %s is still held for %s", held.Items[i].Name, bridge.ParentOf(&held.Items[i]))
	}
}
