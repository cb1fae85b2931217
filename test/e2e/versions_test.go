package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestVersions moves the whole Service range under traffic, there, back, there again and for good, with each version of Kubernetes that
// labs run. Nothing may be lost.
func TestVersions(t *testing.T) {
	for _, v := range []struct{ name, kubernetes, gates, apis string }{
		{name: "1.36.3", kubernetes: "1.36.3"},
		{name: "1.33.13", kubernetes: "1.33.13", gates: "DisableAllocatorDualWrite=true,ComponentFlagz=true"},
		{name: "1.31.0", kubernetes: "1.31.0"}, // without ServiceCIDRs: the range is a flag
		{
			name: "1.31.0-v1beta1", kubernetes: "1.31.0", gates: "MultiCIDRServiceAllocator=true,DisableAllocatorDualWrite=true",
			apis: "networking.k8s.io/v1beta1=true",
		},
	} {
		t.Run(v.name, func(t *testing.T) {
			topology := highlyAvailable("e2e-" + strings.ReplaceAll(v.name, ".", "-"))
			topology.Kubernetes, topology.FeatureGates, topology.RuntimeConfig = v.kubernetes, v.gates, v.apis
			thereAndBackAndThere(t, bringUp(t, topology))
		})
	}
}

func thereAndBackAndThere(t *testing.T, l *lab.Lab) {
	t.Helper()
	forgetNamesSoon(t, l)
	s := wholeUnderTraffic(t, l)
	twoOf(t, l, "payments")
	before := allServices(t, l)
	moveWhole(t, l, s, writeWritingOnce(t, l, "versions"))
	back := s.during(t, "the whole rollback", func() { attend(t, l, oldRange, 0, "rollback", "versions", "--yes") })
	back.requireNothingLost(t, traffic.All)
	requireSame(t, before, allServices(t, l))
	requireWhole(t, l, oldRange)
	requireNoTrace(t, l)
	moveWhole(t, l, s, writeWritingOnce(t, l, "again"))
	s = startedSince(t, l, s)
	over := s.during(t, "finish", func() { attend(t, l, newRange, 0, "finish", "again", "--yes", "--leave-clients") })
	over.requireNothingLost(t, traffic.All)
	requireWhole(t, l, newRange)
	requireNaiveLoses(t, l)
}

// twoOf gives a Deployment of the shop that has one pod another, as RP1506 says: kubelets before 1.35 take pods for unready when they are restarted.
func twoOf(t *testing.T, l *lab.Lab, name string) {
	t.Helper()
	all := l.Client().AppsV1().Deployments(shopNamespace)
	d, err := all.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	d.Spec.Replicas = ptr.To[int32](2)
	if d, err = all.Update(t.Context(), d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, workload.WaitReady(t.Context(), l.Client(), settled, d))
}

// writeWritingOnce is writeWhole for API servers of which it may not be seen that they write addresses once: all that have ServiceCIDRs do.
func writeWritingOnce(t *testing.T, l *lab.Lab, name string) string {
	t.Helper()
	return rewrite(t, writeWhole(t, l, name, shortDrain), func(text string) string {
		return strings.Replace(text, "{name: "+name+"}", "{name: "+name+", annotations: {"+v1alpha1.AnnotationDualWrite+`: "Off"}}`, 1)
	})
}

// startedSince ends the clients that were there before the move, and has others do the same: what calls old addresses loses them in finish, and so
// does who was given an old name server.
func startedSince(t *testing.T, l *lab.Lab, before *shop) *shop {
	t.Helper()
	before.watch.Stop()
	removeClients(t, l, shopNamespace, callersNamespace)
	called := shopCallees(t, l)
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(),
		traffic.Call(shopNamespace, called, wholeRates()).AndKeep(called, wholeRates()),
		traffic.CallNewAPI(callersNamespace, newAPI, clusterRates()).AndAskNew(newDNS, clusterRates()))
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch}
	s.steady(t)
	return s
}

// shopCallees are the Services of the shop that its pods answer for, once for each address that they have now.
func shopCallees(t *testing.T, l *lab.Lab) []traffic.Callee {
	t.Helper()
	var all []traffic.Callee
	for name, svc := range shopServices(t, l) {
		if len(svc.Labels) == 0 || svc.Labels[v1alpha1.LabelRole] != "" { // workload.Echo gives labels
			continue
		}
		for _, address := range svc.Spec.ClusterIPs {
			all = append(all, traffic.Callee{Name: name, Address: address})
		}
	}
	return all
}
