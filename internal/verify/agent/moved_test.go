package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
)

// fakeFlows stands in for connection tracking.
type fakeFlows struct {
	mu    sync.Mutex
	own   []string
	moved []map[netip.Addr]string
	pods  []map[netip.Addr]string
	list  []v1alpha1.OldAddressClient
	err   error
	// left are the entries that Forget does not delete.
	left      int
	forgotten []string
}

func (f *fakeFlows) Clients(moved, pods map[netip.Addr]string) ([]v1alpha1.OldAddressClient, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moved, f.pods = append(f.moved, moved), append(f.pods, pods)
	return f.list, f.err
}

func (f *fakeFlows) Own(_ string, _, remote netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = append(f.own, remote.String())
}

func (f *fakeFlows) Forget(servers []netip.Addr, rested time.Duration) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, fmt.Sprint(servers, " ", rested))
	return f.left, f.err
}

func reportOf(c *clients) (list []v1alpha1.OldAddressClient, more int, err error) {
	st := &v1alpha1.NodeReportStatus{}
	err = c.report(st)
	return st.Clients, st.MoreClients, err
}

// TestClientsOfOldAddresses are those of the address that was left, and those of the bridge's own,
// which names lead to in the middle of a hop.
func TestClientsOfOldAddresses(t *testing.T) {
	pod := func(namespace, name, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
		change(p)
		return p
	}
	svc := service("shop", "cart", newAt, movedAt("1"))
	b := service("shop", bridge.Name("cart", "uid-cart"), "10.96.9.9", role(v1alpha1.RoleBridge), touched)
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(svc.UID)
	s := view{migration: migration(), services: []*corev1.Service{svc, b}, ranges: moveRanges(), pods: []*corev1.Pod{
		pod("shop", "web", "10.0.0.1", func(*corev1.Pod) {}),
		pod("shop", "done", "10.0.0.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("kube-system", "proxy", "192.0.2.1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod(v1alpha1.SystemNamespace, "probe-x", "10.0.0.3", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelRole] = v1alpha1.RoleProbe }),
	}}
	flows := &fakeFlows{list: []v1alpha1.OldAddressClient{{Source: "10.0.0.1"}, {Source: "10.0.0.3"}, {Source: "192.0.2.1"}}}
	c := &clients{flows: flows}
	c.look(s)
	list, more, err := reportOf(c)
	if err != nil || more != 0 || len(list) != 2 || list[0].Source != "10.0.0.1" || list[1].Source != "192.0.2.1" {
		t.Errorf("%+v, %d more, %v", list, more, err)
	}
	if fmt.Sprint(flows.moved) != "[map[10.96.0.9:shop/cart 10.96.9.9:shop/cart]]" ||
		fmt.Sprint(flows.pods) != "[map[10.0.0.1:shop/web 10.0.0.3:]]" {
		t.Errorf("asked for %v of %v", flows.moved, flows.pods)
	}
	flows.err, flows.list = errors.New("not permitted"), nil
	c.look(s)
	if list, _, err := reportOf(c); err == nil || len(list) != 2 {
		t.Errorf("%d clients, %v", len(list), err)
	}
	flows.err = nil
	for i := range 300 {
		flows.list = append(flows.list, v1alpha1.OldAddressClient{Source: fmt.Sprint(i)})
	}
	c.look(s)
	if list, more, err := reportOf(c); err != nil || len(list) != mostClients || more != 44 {
		t.Errorf("%d clients, %d more, %v", len(list), more, err)
	}
	s.services = nil
	c.look(s)
	if list, more, _ := reportOf(c); len(list)+more > 0 || len(flows.moved) != 3 {
		t.Errorf("without old addresses, %d clients", len(list)+more)
	}
}

// TestOldAddressesAreWatchedByReservation: a Service that says nothing of itself, with a bridge
// that says nothing, is watched all the same, and the report has which addresses that are.
func TestOldAddressesAreWatchedByReservation(t *testing.T) {
	svc := service("shop", "cart", newAt)
	b := service("shop", bridge.Name("cart", "uid-cart"), "10.96.9.9")
	svc.Annotations, b.Annotations, b.Labels = nil, nil, nil
	hold := bridge.Hold{Migration: migration().Name, Address: netip.MustParseAddr(oldAt), Bridge: client.ObjectKeyFromObject(b)}
	ip := hold.Build()
	ip.CreationTimestamp = metav1.NewTime(time.Now())
	s := view{
		migration: migration(), services: []*corev1.Service{svc, b}, ranges: moveRanges(), listed: true,
		reserved: []*networkingv1.IPAddress{shrinkReserved(ip)},
	}
	s.migration.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{From: []string{"10.96.0.0/16"}, To: []string{"172.24.0.0/16"}}
	flows := &fakeFlows{}
	c := &clients{flows: flows}
	c.look(s)
	if fmt.Sprint(flows.moved) != "[map[10.96.0.9:shop/cart 10.96.9.9:shop/cart]]" {
		t.Errorf("asked for %v", flows.moved)
	}
	st := &v1alpha1.NodeReportStatus{}
	if err := c.report(st); err != nil || s.leftAddresses().Lacks(st.Watched) != "" || st.Watched.Count != 2 {
		t.Errorf("reports %+v, %v", st.Watched, err)
	}
	if d := departures(s, s.leftAddresses())[netip.MustParseAddr(oldAt)]; time.Until(d.expired) < defaultDrain-5*time.Second {
		t.Errorf("clients by name are expected until %s", d.expired)
	}
	s.migration.Status.PointOfNoReturnPassed = true
	if c.look(s); len(flows.moved) != 1 {
		t.Errorf("past the point of no return, asked for %v", flows.moved[1:])
	}
}

// TestOwnAddressesAreFound: a Service that keeps its other address itself has to answer there, as
// long as the migration keeps it, and only in the migration's ranges.
func TestOwnAddressesAreFound(t *testing.T) {
	keeping := func(at string, notes ...func(*corev1.Service)) *corev1.Service {
		svc := service("shop", "cart", at, notes...)
		if svc.Annotations == nil {
			svc.Annotations = map[string]string{}
		}
		svc.Annotations[v1alpha1.LabelMigration] = migration().Name
		svc.Annotations[v1alpha1.AnnotationOldIP], svc.Annotations[v1alpha1.AnnotationTargetIP] = oldAt, newAt
		return svc
	}
	for name, tt := range map[string]struct {
		svc   *corev1.Service
		past  bool
		found bool
		other string
	}{
		"before the move":  {with(keeping(oldAt), newAt), false, true, newAt},
		"after the move":   {with(keeping(newAt, movedAt("1")), oldAt), false, true, oldAt},
		"past the return":  {with(keeping(newAt, movedAt("1")), oldAt), true, true, ""},
		"taken off":        {keeping(newAt, movedAt("1")), false, true, ""},
		"of no migration":  {with(service("shop", "cart", oldAt), newAt), false, false, ""},
		"not begun":        {keeping(oldAt), false, false, ""},
		"an outer address": {with(keeping(oldAt), "192.0.2.7"), false, false, ""},
	} {
		m := migration()
		m.Status.PointOfNoReturnPassed = tt.past
		found := movers(view{migration: m, services: []*corev1.Service{shrinkService(tt.svc, moveRanges())}, ranges: moveRanges()})
		if len(found) > 0 != tt.found {
			t.Errorf("%s: found %v", name, found)
			continue
		}
		if tt.found && (found[0].other.IsValid() != (tt.other != "") || tt.other != "" && found[0].other.String() != tt.other) {
			t.Errorf("%s: it has to answer at %v, want %q", name, found[0].other, tt.other)
		}
	}
}

// with has a Service answer at an address of its own.
func with(svc *corev1.Service, a string) *corev1.Service {
	svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, a)
	return svc
}
