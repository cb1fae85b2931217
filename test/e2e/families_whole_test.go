package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// The ranges of a lab of both families, and where they go.
const (
	oldFour, newFour = oldRange, newRange
	oldSix, newSix   = "fd00:10:96::/112", "fd00:10:97::/112"
)

// TestFamiliesWhole moves the whole range of one family of a cluster that has both, and then that of the other: kube-dns, which has an address of
// each, the default range, and the flag of the API servers, which names both ranges. kubernetes moves with the first family. The first goes there,
// back, there again and to its end, the second there and to its end. Agents prove it. No one who calls Services of either family, by name or at an
// address that is not left for good, cluster DNS or the API server may lose anything.
func TestFamiliesWhole(t *testing.T) {
	l := bringUp(t, highlyAvailable("e2e-both-whole").InFamilies(lab.IPv4, lab.IPv6))
	dns, err := l.Client().CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), "kube-dns", metav1.GetOptions{})
	must(t, err)
	dns.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	if _, err := l.Client().CoreV1().Services(metav1.NamespaceSystem).Update(t.Context(), dns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	forgetNamesSoon(t, l)
	s := startFamiliesWhole(t, l)
	requireDefaults(t, l, oldFour, oldSix)
	before := allServices(t, l)

	four := writeFamily(t, l, "four", newFour)
	moveFamilyWhole(t, l, s, four, newFour, oldSix)
	back := s.during(t, "the rollback of IPv4", func() {
		attendAs(t, toolingOfBoth(l, oldFour, oldSix), 0, "rollback", "four", "--yes")
	})
	back.requireNothingLost(t, traffic.All)
	requireSame(t, before, allServices(t, l))
	requireDefaults(t, l, oldFour, oldSix)
	requireNoTrace(t, l)

	moveFamilyWhole(t, l, s, four, newFour, oldSix)
	s = familiesSince(t, l, s)
	finishFamilyWhole(t, l, s, "four", traffic.All)
	requireDefaults(t, l, newFour, oldSix)

	six := writeFamily(t, l, "six", newSix)
	there := s.during(t, "the move of IPv6", func() { attendAs(t, toolingOfBoth(l, newFour, newSix), 0, "apply", "-f", six) })
	there.requireNothingLost(t, traffic.All)
	requireInFamily(t, l, newSix)
	left := clientOf(netip.MustParsePrefix(oldSix).Addr())
	finishFamilyWhole(t, l, s, "six", func(s traffic.Source) bool { return s.Via != traffic.ByOldAddress || s.Client != left })
	requireDefaults(t, l, newFour, newSix)
	requireNoTrace(t, l)
	requireNaiveLoses(t, l)
}

// familyRates are low: three control planes, agents and clients of both families share two processors. With 5 of each, 30 threads waited for one,
// and a probe's time-out of a second passed without a fault of the cluster.
func familyRates() traffic.Rates { return traffic.Rates{Request: 2, Stream: 2, LookUp: 2} }

// startFamiliesWhole has clients call the shop at all addresses, cluster DNS and the API server.
func startFamiliesWhole(t *testing.T, l *lab.Lab) *shop {
	t.Helper()
	callees, err := openFamilies(t.Context(), l)
	must(t, err)
	must(t, workload.Ensure(t.Context(), l.Client(), workload.Namespace(callersNamespace)))
	few := familyRates()
	calls := append(familyCalls(callees, few), traffic.CallAPI(callersNamespace, oldAPI, few).AndAsk(oldDNS, few))
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls...)
	must(t, err)
	t.Cleanup(watch.Stop)
	must(t, watch.Await(t.Context(), settled, "a second without failures", traffic.All, traffic.Steady))
	return &shop{watch: watch}
}

// familiesSince ends the clients that were there before the move, and has others call the addresses that Services have now: those before have the
// old name server, which finish takes away.
func familiesSince(t *testing.T, l *lab.Lab, before *shop) *shop {
	t.Helper()
	before.watch.Stop()
	removeClients(t, l, shopNamespace, callersNamespace)
	calls := append(familyCalls(shopCallees(t, l), familyRates()),
		traffic.CallNewAPI(callersNamespace, newAPI, familyRates()).AndAskNew(newDNS, familyRates()))
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), calls...)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch}
	s.steady(t)
	return s
}

// toolingOfBoth is the operator who brings the cluster's own parts to ranges, the first of which is that of kubernetes and of what kubelets name.
func toolingOfBoth(l *lab.Lab, four, six string) operator {
	o := tooling(l, four)
	o.serviceCIDRs = append(o.serviceCIDRs, netip.MustParsePrefix(six))
	return o
}

func moveFamilyWhole(t *testing.T, l *lab.Lab, s *shop, file, four, six string) {
	t.Helper()
	there := s.during(t, "the move to "+four, func() { attendAs(t, toolingOfBoth(l, four, six), 0, "apply", "-f", file) })
	there.requireNothingLost(t, traffic.All)
	requireInFamily(t, l, four)
	requireFlags(t, l, four, six)
}

func finishFamilyWhole(t *testing.T, l *lab.Lab, s *shop, name string, stays func(traffic.Source) bool) {
	t.Helper()
	end := s.during(t, "the end of "+name, func() { replumb(t, l, "finish", name, "--yes", "--leave-clients") })
	end.requireNothingLost(t, stays)
}

// requireFlags fails the test unless the control planes run with both ranges, in this order.
func requireFlags(t *testing.T, l *lab.Lab, first, second string) {
	t.Helper()
	requireServiceCIDR(t, l, netip.MustParsePrefix(first), netip.MustParsePrefix(second))
}

// requireDefaults fails the test unless the control planes run with both ranges, and the one ServiceCIDR that there is has both.
func requireDefaults(t *testing.T, l *lab.Lab, first, second string) {
	t.Helper()
	requireFlags(t, l, first, second)
	all, err := l.Client().NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(all.Items) != 1 || all.Items[0].Name != "kubernetes" || !slices.Equal(all.Items[0].Spec.CIDRs, []string{first, second}) {
		t.Errorf("the servicecidrs are %+v, and should be %s,%s alone", all.Items, first, second)
	}
}

// writeFamily writes a Migration of the whole range of one family, which agents prove.
func writeFamily(t *testing.T, l *lab.Lab, name, to string) string {
	t.Helper()
	return writeSpec(t, name, `
  serviceCIDR:
    to: ["%s"]
    drain: %s
    gateWait: 3m
    apiServers: ["%s"]
  batch: {size: 8, settle: 1s}
  image: %s
  proof: {agents: Enabled, soak: 5s, wait: 1m}
`, to, shortDrain, strings.Join(l.APIServers(), `", "`), workload.ReplumbImage)
}
