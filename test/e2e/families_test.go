package e2e

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestFamiliesOfLab sees what labs with IPv6 are worth: pods on nodes of either proxy mode reach Services of each family, on their node
// and across, by name and by address, and are seen as themselves.
func TestFamiliesOfLab(t *testing.T) {
	for name, families := range map[string][]lab.Family{
		"six": {lab.IPv6}, "both": {lab.IPv4, lab.IPv6}, "sixfirst": {lab.IPv6, lab.IPv4},
	} {
		t.Run(name, func(t *testing.T) {
			l := bringUp(t, named(name).InFamilies(families...))
			nodes, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			must(t, err)
			for _, n := range nodes.Items {
				if len(n.Spec.PodCIDRs) != len(families) {
					t.Errorf("node %s has the ranges %v", n.Name, n.Spec.PodCIDRs)
				}
			}
			s := startFamilies(t, l)
			still := s.during(t, "nothing at all", func() {})
			still.requireNothingLost(t, traffic.All)
			requireNaiveLoses(t, l)
		})
	}
}

// startFamilies runs the shop, whose Services have an address of each family of the lab, and clients that call it at all of them.
func startFamilies(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	callees, err := openFamilies(t.Context(), l)
	must(t, err)
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), familyCalls(callees, rates())...)
	must(t, err)
	t.Cleanup(watch.Stop)
	must(t, watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
	return &shop{watch: watch}
}

// openFamilies creates the shop, and returns each of its Services once for each address.
func openFamilies(ctx context.Context, l *lab.Lab) ([]traffic.Callee, error) {
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	for _, echo := range workload.Shop(shopNamespace) {
		service := echo.Service()
		service.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
		objects = append(objects, echo.Deployment(), service)
	}
	callees, err := start(ctx, l, shopNamespace, objects)
	if err != nil {
		return nil, err
	}
	for _, c := range slices.Clone(callees) {
		s, err := l.Client().CoreV1().Services(shopNamespace).Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, second := range s.Spec.ClusterIPs[1:] {
			callees = append(callees, traffic.Callee{Name: c.Name, Address: second})
		}
	}
	return callees, nil
}

// clientOf is what the client is called that calls addresses of a family.
func clientOf(a netip.Addr) string { return strings.ToLower(string(lab.FamilyOf(a))) }

// familyCalls are the calls to Services at each of their addresses, by a client of its own for each family.
func familyCalls(callees []traffic.Callee, rates traffic.Rates) []traffic.Calls {
	byClient := map[string][]traffic.Callee{}
	for _, c := range callees {
		client := clientOf(netip.MustParseAddr(c.Address))
		byClient[client] = append(byClient[client], c)
	}
	var all []traffic.Calls
	for client, some := range byClient {
		calls := traffic.Call(shopNamespace, some, rates).AndKeep(some, rates)
		calls.Client = client
		all = append(all, calls)
	}
	return all
}

// TestFamilies moves Services in the family of a cluster of IPv6, and in either family of one that has both: there, back, there again, and to the
// end. Agents prove it. No one who calls Services of either family, by name or at an address that is not left, may lose anything.
func TestFamilies(t *testing.T) {
	for name, tt := range map[string]struct {
		families []lab.Family
		to       string
	}{
		"six":       {[]lab.Family{lab.IPv6}, "fd00:10:97::/112"},
		"both-four": {[]lab.Family{lab.IPv4, lab.IPv6}, "10.97.0.0/16"},
		"both-six":  {[]lab.Family{lab.IPv4, lab.IPv6}, "fd00:10:97::/112"},
	} {
		t.Run(name, func(t *testing.T) {
			l := bringUp(t, named("e2e-"+name).InFamilies(tt.families...))
			s := startFamilies(t, l)
			moveFamily(t, l, s, name, tt.to)
			requireNoTrace(t, l)
			requireNaiveLoses(t, l)
		})
	}
}

// moveFamily moves Services to a range, there, back, and for good.
func moveFamily(t *testing.T, l *lab.Lab, s *shop, name, to string) {
	t.Helper()
	file := proven{name: name, to: to, drain: shortDrain}.write(t)
	there := s.during(t, "the move to "+to, func() { replumb(t, l, "apply", "-f", file) })
	there.requireNothingLost(t, traffic.All)
	requireInFamily(t, l, to)
	back := s.during(t, "the way back from "+to, func() { replumb(t, l, "rollback", name, "--yes") })
	back.requireNothingLost(t, traffic.All)
	again := s.during(t, "the second move to "+to, func() { replumb(t, l, "apply", "-f", file) })
	again.requireNothingLost(t, traffic.All)
	client := clientOf(netip.MustParsePrefix(to).Addr())
	stays := func(s traffic.Source) bool { return s.Via != traffic.ByOldAddress || s.Client != client }
	end := s.during(t, "the end of the move to "+to, func() { replumb(t, l, "finish", name, "--yes", "--leave-clients") })
	end.requireNothingLost(t, stays)
	requireInFamily(t, l, to)
}

// requireInFamily fails the test unless each Service of the shop has its address of the family in the range.
func requireInFamily(t *testing.T, l *lab.Lab, to string) {
	t.Helper()
	want := netip.MustParsePrefix(to)
	for name, s := range shopServices(t, l) {
		if s.Labels[v1alpha1.LabelRole] == v1alpha1.RoleBridge {
			continue
		}
		if len(s.Spec.ClusterIPs) != len(l.Topology.Families()) {
			t.Errorf("service %s is at %v", name, s.Spec.ClusterIPs)
		}
		for _, text := range s.Spec.ClusterIPs {
			if a := netip.MustParseAddr(text); a.Is4() == want.Addr().Is4() && !want.Contains(a) {
				t.Errorf("service %s is at %v, and not in %s", name, s.Spec.ClusterIPs, to)
			}
		}
	}
}
