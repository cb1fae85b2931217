//go:build apiserver && long

package agent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/bridge"
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
	b := service("shop", bridge.Name(name, h.svc.UID), "", role(v1alpha1.RoleBridge))
	b.UID, b.Spec.Type = "", corev1.ServiceTypeClusterIP
	b.Annotations[v1alpha1.AnnotationServiceUID] = string(h.svc.UID)
	b.Annotations[v1alpha1.AnnotationOldIP], b.Annotations[v1alpha1.AnnotationTargetIP] = from, to
	f.must(f.Create(f.Context(), b))
	return h
}

func (h *hop) move() {
	h.Helper()
	h.leave()
	h.arrive()
}

func (h *hop) leave() {
	h.Helper()
	patch := client.MergeFrom(h.svc.DeepCopy())
	h.svc.Annotations = map[string]string{v1alpha1.LabelMigration: "m"}
	h.svc.Annotations[v1alpha1.AnnotationOldIP], h.svc.Annotations[v1alpha1.AnnotationTargetIP] = h.old, h.new
	s := &h.svc.Spec
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeExternalName, "bridge.example", "", nil
	s.IPFamilies, s.IPFamilyPolicy, s.InternalTrafficPolicy = nil, nil, nil
	h.must(h.Patch(h.Context(), h.svc, patch))
}

func (h *hop) arrive() {
	h.Helper()
	s, patch := &h.svc.Spec, client.MergeFrom(h.svc.DeepCopy())
	h.svc.Annotations[v1alpha1.AnnotationMovedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	s.Type, s.ExternalName, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeClusterIP, "", h.new, []string{h.new}
	h.until("the new address is free", func() bool {
		err := h.Patch(h.Context(), h.svc, patch)
		if bridge.IsTaken(err) {
			h.free(h.new)
			return false
		}
		h.must(err)
		return true
	})
}

// free removes what the API server's allocator keeps of an address that no Service has: it may have
// reserved it for an update that it then had to begin again (GuaranteedUpdate in k8s.io/apiserver
// pkg/storage/etcd3/store.go).
func (h *hop) free(address string) {
	h.Helper()
	have := &networkingv1.IPAddress{}
	if err := h.Get(h.Context(), client.ObjectKey{Name: address}, have); err != nil {
		h.must(client.IgnoreNotFound(err))
		return
	}
	parent := have.Spec.ParentRef
	h.Logf("address %s is kept for %+v since %s", address, parent, have.CreationTimestamp)
	if parent == nil || parent.Name != h.svc.Name {
		h.Fatalf("address %s is of %+v", address, parent)
	}
	h.must(client.IgnoreNotFound(h.Delete(h.Context(), have)))
}

// hold reserves the old address for the bridge, as no tenant can.
func (h *hop) hold() {
	h.Helper()
	hold := bridge.Hold{Migration: "m", Address: netip.MustParseAddr(h.old), Bridge: client.ObjectKey{
		Namespace: "shop", Name: bridge.Name(h.svc.Name, h.svc.UID),
	}}
	h.until("the old address is free", func() bool {
		return hold.PlaceAfter(h.Context(), h.Server, client.ObjectKeyFromObject(h.svc)) == nil
	})
}

// TestMovedServicesAreConnectedTo has one Service that answers wherever it should, one whose bridge
// does not, and one that never did.
func TestMovedServicesAreConnectedTo(t *testing.T) {
	f := newFixture(t)
	for _, at := range []string{"127.64.9.1", "127.64.9.2", "127.64.9.3", "127.64.9.12"} {
		f.answers(at)
	}
	stop := f.answers("127.64.9.9")
	flows := &fakeFlows{}
	f.start(v1alpha1.FromHost, "uid-1", often, func(a *Agent) { a.Flows = flows })
	f.report("a first report", func(st v1alpha1.NodeReportStatus) bool { return st.Connects != nil })
	good := f.bridged("good", "127.64.9.1", "127.64.9.2")
	bad := f.bridged("bad", "127.64.9.9", "127.64.9.3")
	dead := f.bridged("dead", "127.64.9.7", "127.64.9.8")
	f.until("baselines", func() bool { return flows.reported("127.64.9.1:80") && flows.reported("127.64.9.9:80") })
	stop()
	good.move()
	bad.leave()
	bad.hold() // before it arrives, as in a migration: an agent may connect at once
	bad.arrive()
	dead.move()
	f.lure("127.64.9.12", "127.64.9.20")
	st := f.report("all are connected to", func(st v1alpha1.NodeReportStatus) bool { return st.Connects.Connected == 4 })
	if c := st.Connects; len(c.Failed) != 1 || c.Failed[0].Service != "shop/bad" || c.Failed[0].Address != "127.64.9.9:80" ||
		c.Instance != "uid-1" {
		t.Errorf("connects %+v", c)
	}
	f.report("the reserved address is watched", func(st v1alpha1.NodeReportStatus) bool {
		return st.Watched != nil && st.Watched.Count == 2 // with the bridge's own
	})
	if !flows.reported("127.64.9.2:80") {
		t.Errorf("flows of the agent's own: %v", flows.own)
	}
}

// TestAgentTakesUpWhatWasRemembered: who was seen by the agent before is in the report of the one
// after it, which sees none. With the report removed in between, as the control, it is not.
func TestAgentTakesUpWhatWasRemembered(t *testing.T) {
	f := newFixture(t)
	f.bridged("good", "127.64.9.1", "127.64.9.2").move()
	seen := v1alpha1.OldAddressClient{
		Address: "127.64.9.1:80", Protocol: "TCP", Service: "shop/good", Source: "10.244.1.7", Open: 1,
		LastSeen: metav1.NewMicroTime(time.Now().Add(2 * defaultDrain)),
	}
	first := &fakeFlows{list: []v1alpha1.OldAddressClient{seen}}
	end := f.start(v1alpha1.FromHost, "uid-1", often, func(a *Agent) { a.Flows = first })
	known := func(st v1alpha1.NodeReportStatus) bool { return len(st.Clients) == 1 && st.Clients[0].FirstSeen != nil }
	f.report("a client", known)
	end()
	says := func(instance string, looked *fakeFlows) func(v1alpha1.NodeReportStatus) bool {
		return func(st v1alpha1.NodeReportStatus) bool {
			return len(st.Agents) == 1 && st.Agents[0].Instance == instance && looked.looks() > 1
		}
	}
	second := &fakeFlows{}
	end = f.start(v1alpha1.FromHost, "uid-2", often, func(a *Agent) { a.Flows = second })
	if st := f.report("a report of the second agent", says("uid-2", second)); !known(st) || st.Clients[0].Open != 0 ||
		st.Clients[0].Source != "10.244.1.7" {
		t.Errorf("the second agent reports %+v", st.Clients)
	}
	end()
	f.must(f.Delete(t.Context(), &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}))
	third := &fakeFlows{}
	f.start(v1alpha1.FromHost, "uid-3", often, func(a *Agent) { a.Flows = third })
	if st := f.report("a report of the third agent", says("uid-3", third)); len(st.Clients) > 0 {
		t.Errorf("without a report to take up, %+v", st.Clients)
	}
}

// looks is how often connection tracking was read.
func (f *fakeFlows) looks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.moved)
}

// lure makes what a tenant can: a Service of his that says it has moved, and a bridge beside it, as
// replumb names it, that says it answers at an address which the Service never had. It would count
// as lost.
func (f *fixture) lure(at, never string) {
	f.Helper()
	notes := func(svc *corev1.Service) {
		svc.UID = ""
		svc.Annotations[v1alpha1.LabelMigration] = "m"
		svc.Annotations[v1alpha1.AnnotationOldIP], svc.Annotations[v1alpha1.AnnotationTargetIP] = never, at
	}
	svc := service("shop", "lure", at, notes, func(svc *corev1.Service) { svc.Annotations[v1alpha1.AnnotationMovedAt] = "1" })
	f.must(f.Create(f.Context(), svc))
	b := service("shop", bridge.Name("lure", svc.UID), "", role(v1alpha1.RoleBridge), notes)
	b.Spec.Type, b.Annotations[v1alpha1.AnnotationServiceUID] = corev1.ServiceTypeClusterIP, string(svc.UID)
	f.must(f.Create(f.Context(), b))
}

func (f *fakeFlows) reported(remote string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.own, remote)
}
