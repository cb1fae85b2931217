package e2e

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/lab/lab"
)

// TestNeighboursStored moves every Service but the cluster's own in etcd, and moves them back, beside software that watches Services and has Services
// itself, which move as well: Traefik, MetalLB, metrics-server by way of the API servers, and a webhook that fails closed. Meanwhile someone patches one
// of them every second. Nothing may be lost, refused or unavailable, and who watches Services sees addresses of the cluster's range change and nothing
// else. The control hops a Service behind Traefik without any care, which must lose.
func TestNeighboursStored(t *testing.T) {
	topology := named("e2e-stored-beside")
	topology.Edge, topology.With = true, []lab.Addon{lab.Traefik, lab.MetalLB, lab.MetricsServer}
	l := bringUp(t, topology)
	n := newNeighbours(t, l)
	t.Cleanup(func() { n.logNeighbours() })
	n.standGuard()
	s := n.callFromOutside(20, 100)
	hops := watchHops(t.Context(), l.Client())
	seen := watchAddresses(t, l, "", usersOwn)
	file, run := n.writeStored(), n.onControlPlane()
	before := n.unpatched()

	n.steadily(s, hops, "the move in etcd", func() { run("apply", "-f", file) })
	n.requireStoredAt(newRange)
	n.steadily(s, hops, "the way back in etcd", func() { run("rollback", "stored", "--yes") })
	n.requireStoredAt(oldRange)
	requireNoTrace(t, l)
	requireSame(t, before, n.unpatched())
	seen.requireOnlyAddresses(t)
	n.requireNaiveLoses(s, "a hop without care", n.hopBare)
}

// usersOwn tells whether a Service is neither the cluster's nor replumb's.
func usersOwn(s *corev1.Service) bool {
	clusters := (s.Namespace == "default" && s.Name == "kubernetes") || (s.Namespace == "kube-system" && s.Name == "kube-dns")
	return !clusters && s.Namespace != v1alpha1.SystemNamespace && s.Labels[v1alpha1.LabelRole] == ""
}

// unpatched are all Services without the label that patchService writes.
func (n *neighbourhood) unpatched() map[string]corev1.Service {
	n.Helper()
	all := allServices(n.T, n.l)
	for _, s := range all {
		delete(s.Labels, "patched")
	}
	return all
}

// writeStored writes a Migration by which every Service moves in etcd.
func (n *neighbourhood) writeStored() string {
	n.Helper()
	return writeSpec(n.T, "stored", `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
    strategies: {clusterIP: Etcd, nodePort: Etcd, loadBalancer: Etcd}
    %s
  batch: {size: 8, settle: 0s}
`, newRange, shortDrain, storedEtcd)
}

// onControlPlane runs commands of replumb on a control plane, where the certificates of etcd are.
func (n *neighbourhood) onControlPlane() func(args ...string) {
	command := onControlPlane(n.T, n.l)
	return func(args ...string) {
		n.Helper()
		cmd := command(n.T, args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			n.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, lastOf(out))
		}
	}
}

// lastOf is the end of what a command has printed.
func lastOf(out []byte) []byte {
	const enough = 4096
	return out[max(0, len(out)-enough):]
}

// requireStoredAt fails the test unless every Service of users with an address of the cluster has one of a range.
func (n *neighbourhood) requireStoredAt(want string) {
	n.Helper()
	to := netip.MustParsePrefix(want)
	moved := 0
	for name, s := range allServices(n.T, n.l) {
		if !usersOwn(&s) || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		moved++
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err != nil || !to.Contains(a) {
			n.Errorf("service %s, of type %s, is at %q, not in %s", name, s.Spec.Type, s.Spec.ClusterIP, want)
		}
	}
	n.Logf("%d Services are in %s", moved, want)
}
