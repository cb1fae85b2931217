package checks

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// oneServiceOfSix is a cluster of IPv6 with the Service cart, which is to move.
func oneServiceOfSix() (services.Spec, *inventory.Snapshot) {
	spec, snap := oneService()
	spec.From, spec.To = prefixes("fd00:10:96::/112"), prefixes("fd00:10:97::/112")
	snap.Services[0].Spec.ClusterIP, snap.Services[0].Spec.ClusterIPs = "fd00:10:96::307", []string{"fd00:10:96::307"}
	return spec, snap
}

func nodeAt(address string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

func TestServiceOfIPv6KeepsItsOffset(t *testing.T) {
	spec, snap := oneServiceOfSix()
	s := services.Load(snap, spec)
	if len(s.Moves) != 1 || s.Moves[0].New != netip.MustParseAddr("fd00:10:97::307") {
		t.Fatalf("got %+v", s.Moves)
	}
}

// TestProofOfFamilies has RP1740 fire where kube-proxy cannot be asked.
func TestProofOfFamilies(t *testing.T) {
	four, fourSnap := oneService()
	six, sixSnap := oneServiceOfSix()
	for name, tt := range map[string]struct {
		spec    services.Spec
		snap    *inventory.Snapshot
		node    string
		minor   string
		image   string
		barrier v1alpha1.BarrierMode
		want    findings.Outcome
	}{
		"IPv4":                                 {four, fourSnap, "192.0.2.1", "36", "", "", findings.Pass},
		"IPv4 on nodes of IPv6":                {four, fourSnap, "2001:db8::1", "36", "", "", findings.Fail},
		"IPv4 on nodes of IPv6, with agents":   {four, fourSnap, "2001:db8::1", "36", "replumb", "", findings.Pass},
		"IPv6":                                 {six, sixSnap, "2001:db8::1", "36", "", "", findings.Pass},
		"IPv6, with an old kube-proxy":         {six, sixSnap, "2001:db8::1", "34+", "", "", findings.Fail},
		"IPv6 on nodes of IPv4":                {six, sixSnap, "192.0.2.1", "36", "", "", findings.Fail},
		"IPv6, with agents":                    {six, sixSnap, "2001:db8::1", "34", "replumb", "", findings.Pass},
		"IPv6, with agents that are not asked": {six, sixSnap, "192.0.2.1", "36", "replumb", v1alpha1.BarrierHealthCheck, findings.Fail},
		"IPv6, without proof":                  {six, sixSnap, "192.0.2.1", "36", "", v1alpha1.BarrierWait, findings.Skipped},
	} {
		tt.spec.Barrier, tt.snap.Nodes, tt.snap.Version = tt.barrier, []corev1.Node{nodeAt(tt.node)}, &version.Info{Minor: tt.minor}
		in := Input{Snapshot: tt.snap, Inventory: services.Load(tt.snap, tt.spec), Image: tt.image}
		if got := outcomeOf(familyChecks(), "RP1740", in); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestCalledByIPv6 has RP1741 fire for a Service of IPv6 that API servers call, and not for one of
// IPv4.
func TestCalledByIPv6(t *testing.T) {
	called := &inventory.Scan{
		Called: []inventory.Called{{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, By: "webhook a"}},
	}
	for want, made := range map[findings.Outcome]func() (services.Spec, *inventory.Snapshot){findings.Fail: oneServiceOfSix, findings.Skipped: oneService} {
		spec, snap := made()
		if got := outcomeOf(
			familyChecks(),
			"RP1741",
			Input{Snapshot: snap, Inventory: services.Load(snap, spec), Live: inventory.Live{Inspection: called}},
		); got != want {
			t.Errorf("to %s: %s, want %s", spec.To[0], got, want)
		}
	}
}

func outcomeOf(checks []findings.Check[Input], code string, in Input) findings.Outcome {
	all := findings.Run(checks, in)
	return all[slices.IndexFunc(all, func(f findings.Finding) bool { return f.Code == code })].Outcome
}
