package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// hop is one Service with its bridge, that moves as the migration has Services move.
type hop struct {
	*fixture
	svc      *corev1.Service
	old, new string
}

func (f *fixture) bridged(name, from, to string) *hop {
	f.Helper()
	h := &hop{fixture: f, svc: service("shop", name, from), old: from, new: to}
	h.svc.UID = ""
	f.must(f.Create(f.Context(), h.svc))
	b := service("shop", name+"-bridge", "", role(v1alpha1.RoleBridge))
	b.UID, b.Spec.Type = "", corev1.ServiceTypeClusterIP
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(h.svc.UID)
	b.Annotations[v1alpha1.AnnotationOldIP], b.Annotations[v1alpha1.AnnotationTargetIP] = from, to
	f.must(f.Create(f.Context(), b))
	return h
}

func (h *hop) move() {
	h.Helper()
	patch := client.MergeFrom(h.svc.DeepCopy())
	h.svc.Annotations = map[string]string{v1alpha1.LabelMigration: "m"}
	h.svc.Annotations[v1alpha1.AnnotationOldIP], h.svc.Annotations[v1alpha1.AnnotationTargetIP] = h.old, h.new
	s := &h.svc.Spec
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeExternalName, "bridge.example", "", nil
	s.IPFamilies, s.IPFamilyPolicy, s.InternalTrafficPolicy = nil, nil, nil
	h.must(h.Patch(h.Context(), h.svc, patch))
	patch = client.MergeFrom(h.svc.DeepCopy())
	h.svc.Annotations[v1alpha1.AnnotationMovedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeClusterIP, "", h.new, []string{h.new}
	h.must(h.Patch(h.Context(), h.svc, patch))
}

// TestMovedServicesAreConnectedTo has one Service that answers wherever it should, one whose bridge does not, and one that never did.
func TestMovedServicesAreConnectedTo(t *testing.T) {
	f := newFixture(t)
	for _, at := range []string{"127.64.9.1", "127.64.9.2", "127.64.9.3"} {
		f.answers(at)
	}
	stop := f.answers("127.64.9.9")
	flows := &fakeFlows{}
	f.start(v1alpha1.FromHost, "uid-1", func(a *Agent) { a.Flows = flows })
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return st.Connects != nil })
	good := f.bridged("good", "127.64.9.1", "127.64.9.2")
	bad := f.bridged("bad", "127.64.9.9", "127.64.9.3")
	dead := f.bridged("dead", "127.64.9.7", "127.64.9.8")
	f.until("baselines", func() bool { return flows.told("127.64.9.1:80") && flows.told("127.64.9.9:80") })
	stop()
	good.move()
	bad.move()
	dead.move()
	st := f.report("all are connected to", func(st v1alpha1.NodeReportStatus) bool { return st.Connects.Connected == 3 })
	if c := st.Connects; len(c.Failed) != 1 || c.Failed[0].Service != "shop/bad" || c.Failed[0].Address != "127.64.9.9:80" ||
		c.Instance != "uid-1" {
		t.Errorf("connects %+v", c)
	}
	if !flows.told("127.64.9.2:80") {
		t.Errorf("flows of the agent's own: %v", flows.own)
	}
}

// fakeFlows stands in for connection tracking.
type fakeFlows struct {
	mu    sync.Mutex
	own   []string
	moved []map[netip.Addr]string
	pods  []map[netip.Addr]string
	list  []v1alpha1.OldAddressClient
	err   error
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

func (f *fakeFlows) told(remote string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.own, remote)
}

func TestClientsOfOldAddresses(t *testing.T) {
	pod := func(namespace, name, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
		change(p)
		return p
	}
	svc, b := service("shop", "cart", newAt, movedAt("1")), service("shop", "cart-bridge", "10.96.9.9", role(v1alpha1.RoleBridge), touched)
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(svc.UID)
	s := scene{migration: migration(), services: []*corev1.Service{svc, b}, pods: []*corev1.Pod{
		pod("shop", "web", "10.0.0.1", func(*corev1.Pod) {}),
		pod("shop", "done", "10.0.0.2", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("kube-system", "proxy", "192.0.2.1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
		pod(v1alpha1.SystemNamespace, "probe-x", "10.0.0.3", func(p *corev1.Pod) { p.Labels[v1alpha1.LabelRole] = v1alpha1.RoleProbe }),
	}}
	flows := &fakeFlows{list: []v1alpha1.OldAddressClient{{Source: "10.0.0.1"}, {Source: "10.0.0.3"}, {Source: "192.0.2.1"}}}
	c := &clients{flows: flows}
	c.look(s)
	list, more, err := c.report()
	if err != nil || more != 0 || len(list) != 2 || list[0].Source != "10.0.0.1" || list[1].Source != "192.0.2.1" {
		t.Errorf("%+v, %d more, %v", list, more, err)
	}
	if fmt.Sprint(flows.moved) != "[map[10.96.0.9:shop/cart]]" || fmt.Sprint(flows.pods) != "[map[10.0.0.1:shop/web 10.0.0.3:]]" {
		t.Errorf("asked for %v of %v", flows.moved, flows.pods)
	}
	flows.err, flows.list = errors.New("not permitted"), nil
	c.look(s)
	if list, _, err := c.report(); err == nil || len(list) != 2 {
		t.Errorf("%d clients, %v", len(list), err)
	}
	flows.err = nil
	for i := range 300 {
		flows.list = append(flows.list, v1alpha1.OldAddressClient{Source: fmt.Sprint(i)})
	}
	c.look(s)
	if list, more, err := c.report(); err != nil || len(list) != mostClients || more != 44 {
		t.Errorf("%d clients, %d more, %v", len(list), more, err)
	}
	s.services = nil
	c.look(s)
	if list, more, _ := c.report(); len(list)+more > 0 || len(flows.moved) != 3 {
		t.Errorf("without old addresses, %d clients", len(list)+more)
	}
}
