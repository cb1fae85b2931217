//go:build root && ownkernel

package proxyrules

import (
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/ownkernel"
)

func TestMain(m *testing.M) {
	ownkernel.RunIfFirst()
	log.SetOutput(io.Discard) // package netlink logs what it does not know of ipsets
	os.Exit(m.Run())
}

const assetsVariable = "KUBEBUILDER_ASSETS"

// TestIPVS runs the tests of a node in mode ipvs in a machine whose kernel has it, beside an API
// server on this one.
func TestIPVS(t *testing.T) {
	s := apitest.Start(t, "10.96.0.0/16")
	out := ownkernel.Run(t, "TestIPVSInside", strings.Join([]string{s.Kubeconfig, os.Getenv(assetsVariable), s.Etcd}, ","), 10*time.Minute)
	t.Log(out)
}

// ranged is a Service whose balancer's address may be called from some ranges alone.
const ranged = "192.0.2.29:80"

// TestIPVSInside is what TestIPVS runs.
func TestIPVSInside(t *testing.T) {
	n := newIPVSNode(t)
	n.addNode(t)
	calls := n.addAllKinds(t)
	n.runProxy(t, IPVS)
	n.awaitAll(t, calls)
	awaitMode(t, IPVS, all)
	t.Run("hop", func(t *testing.T) { n.hop(t) })
	t.Run("toIPTables", func(t *testing.T) {
		open := n.hold(t, calls)
		l := n.during(t, calls, func() {
			n.runProxy(t, IPTables)
			awaitMode(t, IPTables, all-1)
			n.awaitAll(t, calls)
		})
		broken := slices.DeleteFunc(open.broken(), func(c [2]string) bool { return c[1] == ranged })
		t.Logf("to iptables: %s; of %d open connections %v are broken, and those to %s", l, len(open), broken, ranged)
		requireLost(t, l, func(c [2]string) bool { return c[1] == ranged })
		if len(broken) > len(open)/10 {
			t.Errorf("%d of %d open connections are broken", len(broken), len(open))
		}
		l = n.during(t, calls, func() {
			n.runProxy(t, IPVS)
			awaitMode(t, IPVS, all)
			n.awaitAll(t, calls)
		})
		t.Logf("back to ipvs: %s", l)
		requireLost(t, l, func([2]string) bool { return false })
	})
	t.Run("control", func(t *testing.T) {
		l := n.during(t, calls, func() {
			n.runProxy(t, NFTables)
			awaitMode(t, NFTables, all-1)
			n.awaitAll(t, calls)
		})
		t.Logf("to nftables: %s", l)
		if l.failed == 0 {
			t.Error("nothing was lost: the test proves nothing")
		}
	})
}

// requireLost fails the test if calls failed that were not to.
func requireLost(t *testing.T, l *lost, may func([2]string) bool) {
	t.Helper()
	for c, n := range l.by {
		if !may(c) {
			t.Errorf("%d calls from %s to %s failed", n, c[0], c[1])
		}
	}
}

// hop shows why check refuses Services in this mode (RP1202): a second Service with an address
// takes the servers of the first away. Losses while two addresses of one Service change places, as
// one transaction in etcd has it, are told: on some machines there are none.
func (n *ipvsNode) hop(t *testing.T) {
	const one, two, third = "10.96.1.1", "10.96.1.2", "10.96.1.3"
	var calls [][2]string
	for _, from := range []string{here, "pod1", "pod2"} {
		calls = append(calls, [2]string{from, one + ":80"}, [2]string{from, two + ":80"})
	}
	n.addService(t, "hops", one, func(s *corev1.ServiceSpec) {
		s.ExternalIPs, s.ExternalTrafficPolicy = []string{two}, corev1.ServiceExternalTrafficPolicyLocal
	})
	n.awaitAll(t, calls)
	open := n.hold(t, calls)
	l := n.during(t, calls, func() {
		for range 3 {
			for _, at := range []string{two, one} {
				n.exchange(t, one, two)
				awaitMember(t, "KUBE-CLUSTER-IP "+at+",tcp:80")
				n.awaitAll(t, calls)
			}
		}
	})
	t.Logf("on the Service itself, there and back: %s; of %d open connections %v are broken", l, len(open), open.broken())

	l = n.during(t, calls, func() {
		bridge := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "bridge"}}
		bridge.Spec = corev1.ServiceSpec{ClusterIP: third, ExternalIPs: []string{one, two}, Ports: []corev1.ServicePort{{Port: 80}}}
		_, err := n.CoreV1().Services("default").Create(t.Context(), bridge, metav1.CreateOptions{})
		must(t, err)
		awaitMember(t, "KUBE-EXTERNAL-IP "+one+",tcp:80") // before it has endpoints, as the API makes Services
		must(t, n.CoreV1().Services("default").Delete(t.Context(), "bridge", metav1.DeleteOptions{}))
		n.addService(t, "bridge", third, func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{one, two} })
		n.awaitAll(t, calls)
	})
	t.Logf("with a second Service: %s", l)
	if l.failed == 0 {
		t.Error("nothing was lost: RP1202 can be lifted for bridges")
	}
	for _, name := range []string{"hops", "bridge"} {
		must(t, n.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

// awaitMember returns when a member of an ipset is there.
func awaitMember(t *testing.T, member string) {
	t.Helper()
	await(t, "a set has "+member, func() bool { return strings.Contains(program(t, "", "ipset", "save"), "add "+member+"\n") })
}

// exchange has two addresses of Service hops change places, in etcd: both are of one length.
func (n *ipvsNode) exchange(t *testing.T, one, other string) {
	t.Helper()
	const key = "/registry/services/specs/default/hops"
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{n.etcd}, DialTimeout: 10 * time.Second})
	must(t, err)
	defer func() { _ = c.Close() }()
	got, err := c.Get(t.Context(), key)
	must(t, err)
	if len(got.Kvs) != 1 {
		t.Fatalf("%d values are at %s", len(got.Kvs), key)
	}
	_, err = c.Put(t.Context(), key, strings.NewReplacer(one, other, other, one).Replace(string(got.Kvs[0].Value)))
	must(t, err)
}
