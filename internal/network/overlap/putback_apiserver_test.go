//go:build apiserver && long

package overlap

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// told is what a replica has said of addresses that it put back.
type told struct {
	mu  sync.Mutex
	all []string
}

func (w *told) hear(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *told) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.all, "\n")
}

// moved is a Service that has moved, and the reservation of the address that it keeps itself.
func (f *fixture) moved(name string, form v1alpha1.OverlapForm, old string) *corev1.Service {
	f.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	f.must(server.Create(f.Context(), svc))
	hold := &bridge.Hold{
		Migration: "m", Address: netip.MustParseAddr(old), Service: &bridge.HeldService{Name: name, UID: svc.UID, Form: form},
		Bridge: types.NamespacedName{Namespace: "shop", Name: bridge.Name(name, svc.UID)},
	}
	f.must(hold.Create(f.Context(), server))
	f.Cleanup(func() { _ = hold.Release(context.Background(), server) })
	return svc
}

func (f *fixture) migration() *v1alpha1.Migration {
	f.Helper()
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}, From: []string{"10.96.0.0/16"}}},
	}
	f.must(server.InstallCRD(f.Context()))
	f.until("Migrations are served", func(ctx context.Context) bool { return server.Create(ctx, m) == nil })
	f.Cleanup(func() { _ = server.Delete(context.Background(), m) })
	return m
}

func (f *fixture) read(svc *corev1.Service) *corev1.Service {
	f.Helper()
	now := &corev1.Service{}
	f.must(server.Get(f.Context(), client.ObjectKeyFromObject(svc), now))
	return now
}

// TestAddressesArePutBack: what an owner takes off his Service is put on it again, in the form that
// the reservation says, and their name is told. Other fields of theirs stay. Past the point of no
// return nothing is put back: that is the control.
func TestAddressesArePutBack(t *testing.T) {
	f := setup(t)
	m := f.migration()
	const old = "10.96.200.1"
	r, heard := f.replica("one"), &told{}
	r.Told = heard.hear
	for name, form := range map[string]v1alpha1.OverlapForm{"plain": v1alpha1.OverlapExternalIP, "balanced": v1alpha1.OverlapLoadBalancer} {
		at := netip.MustParseAddr(old)
		if form == v1alpha1.OverlapLoadBalancer {
			at = at.Next()
		}
		svc := f.moved(name, form, at.String())
		keeps := func(context.Context) bool { have, _ := ownaddress.FormOf(f.read(svc), at); return have == form }
		f.until(name+" has its address", keeps)

		owned := f.read(svc)
		ownaddress.Remove(owned, at)
		owned.Spec.Ports[0].Port, owned.Status = 8080, corev1.ServiceStatus{}
		f.must(server.Update(t.Context(), owned, client.FieldOwner("helm")))
		took := f.until(name+" has it again", keeps)
		t.Logf("%s had it again after %s", name, took)
		if now := f.read(svc); now.Spec.Ports[0].Port != 8080 {
			t.Errorf("%s lost its owner's port: %v", name, now.Spec.Ports)
		}
	}
	if text := heard.text(); !strings.Contains(text, "last written by helm") {
		t.Errorf("it says %q, and does not name who took it off", text)
	}

	m.Status.PointOfNoReturnPassed = true
	f.must(server.Status().Update(t.Context(), m))
	svc := f.moved("late", v1alpha1.OverlapExternalIP, "10.96.200.9")
	f.until("it would have been put back", func(context.Context) bool {
		s := r.follower.Status()
		return s.Late > 0 && time.Since(s.Since) > 5*time.Second
	})
	if have := f.read(svc).Spec.ExternalIPs; slices.Contains(have, "10.96.200.9") {
		t.Errorf("an address that finish takes off was put back: %v", have)
	}
}

// TestBridgesGetTheirAddressesBack: what writes the status of every load balancer takes the old
// address off a bridge as well. It is put on again, and what was written beside it stays; one that
// no migration has in its ranges is not, which is the control.
func TestBridgesGetTheirAddressesBack(t *testing.T) {
	f := setup(t)
	f.migration()
	_, b := f.service("cart", 1, map[string]string{"app": "cart"})
	outside := &bridge.Hold{Migration: "m", Address: netip.MustParseAddr("192.0.2.7"), Bridge: b.Key()}
	f.must(outside.Create(t.Context(), server))
	t.Cleanup(func() { _ = outside.Release(context.Background(), server) })
	r, heard := f.replica("one"), &told{}
	r.Told = heard.hear
	is := f.get(b.Key())
	is.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: is.Spec.ClusterIP}}
	f.must(server.Status().Update(t.Context(), is, client.FieldOwner("tunnel")))
	f.until("it has its address again", func(context.Context) bool {
		_, answers := ownaddress.FormOf(f.get(b.Key()), b.Old)
		return answers
	})
	f.until("it is told", func(context.Context) bool { return strings.Contains(heard.text(), "last written by tunnel") })
	now := f.get(b.Key())
	for address, want := range map[string]bool{"192.0.2.7": false, now.Spec.ClusterIP: true} {
		if _, answers := ownaddress.FormOf(now, netip.MustParseAddr(address)); answers != want {
			t.Errorf("it answers at %s: %t, want %t; %+v", address, answers, want, now.Status.LoadBalancer.Ingress)
		}
	}
}
