package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// TestTunnels has every node ask the pods of every other node by UDP, 200 times a second from a pod and 200 times from the node itself, while all
// pods' range is moved and the addresses of the tunnels in between change: no datagram is lost, there and back. The pods that ask and
// answer stay. In the control Calico moves the tunnels by itself.
func TestTunnels(t *testing.T) {
	topology := withCalico("e2e-tunnels")
	topology.Nodes = []lab.ProxyMode{lab.IPTables, lab.NFTables, lab.IPTables}
	l := bringUp(t, topology)
	stays := askers(t, l)
	from, to := l.Topology.PodCIDR, netip.MustParsePrefix(movedTo)
	file := writePodMigration(t, "pods", from, to)
	leaveBarePods(t, file)

	began := time.Now()
	ask := askAll(t, stays)
	shown(t, l, "apply", "-f", file)
	ask.requireNoneLost(t, "the move")
	requireTunnelsIn(t, l, to)

	ask = askAll(t, stays)
	shown(t, l, "rollback", "pods", "--yes")
	ask.requireNoneLost(t, "the way back")
	requireTunnelsIn(t, l, from)
	t.Logf("there and back took %s", time.Since(began).Round(time.Second))

	ask = askAll(t, stays)
	tunnelsByCalico(t, l)
	eventually(t, settled, ask.overdue)
	if lost, sent := ask.stop(t); lost == 0 {
		t.Error("control: Calico moved all tunnels by itself, and nothing was lost")
	} else {
		t.Logf("control: Calico moved all tunnels by itself: %d of %d datagrams were lost", lost, sent)
	}
}

// leaveBarePods has a migration report the pods that no rollout restarts.
func leaveBarePods(t *testing.T, file string) {
	t.Helper()
	rewrite(t, file, func(text string) string { return strings.ReplaceAll(text, "barePods: Evict", "barePods: Report") })
}

const tunnelsNamespace = "tunnels"

// asker is a pod that is asked, and asks as its node does, with the networks of both.
type asker struct {
	addr      netip.Addr
	node, pod netns.NsHandle
}

// askers starts a pod on every node that no rollout restarts, and returns them by node.
func askers(t *testing.T, l *lab.Lab) map[string]asker {
	t.Helper()
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: tunnelsNamespace, Name: "stays"}}
	labels := map[string]string{"app": "stays"}
	echo := workload.Echo{Namespace: tunnelsNamespace, Name: "stays", Replicas: 1}.Deployment()
	set.Spec = appsv1.DaemonSetSpec{
		Selector:       &metav1.LabelSelector{MatchLabels: labels},
		Template:       corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: echo.Spec.Template.Spec},
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
	}
	set.Spec.Template.Spec.TopologySpreadConstraints = nil
	c := clusterClient(t, l)
	for _, o := range []client.Object{workload.Namespace(tunnelsNamespace), set} {
		must(t, c.Create(t.Context(), o))
	}
	all := map[string]asker{}
	eventually(t, settled, func() error {
		pods := &corev1.PodList{}
		if err := c.List(t.Context(), pods, client.InNamespace(tunnelsNamespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			if addr, err := netip.ParseAddr(pods.Items[i].Status.PodIP); err == nil {
				all[pods.Items[i].Spec.NodeName] = asker{addr: addr}
			}
		}
		if len(all) < len(l.NodeNames()) {
			return fmt.Errorf("%d of %d pods have an address", len(all), len(l.NodeNames()))
		}
		return nil
	})
	for node, a := range all {
		a.pod, a.node = networkWith(t, a.addr.String()), networkWith(t, nodeAddress(t, l, node))
		all[node] = a
	}
	return all
}

// tunnelsByCalico adds a pool and disables the other, which is all it takes for Calico to move tunnels.
func tunnelsByCalico(t *testing.T, l *lab.Lab) {
	t.Helper()
	const third = "10.246.0.0/16"
	c := clusterClient(t, l)
	other := calico.Empty("IPPool", "third")
	other.Object["spec"] = map[string]any{
		"cidr": third, "blockSize": int64(26), "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true, "nodeSelector": "all()",
	}
	must(t, c.Create(t.Context(), other))
	pools, err := calico.LoadPools(t.Context(), c)
	must(t, err)
	for i := range pools {
		if pools[i].Name == "third" {
			continue
		}
		disable := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"disabled":true}}`))
		must(t, c.Patch(t.Context(), pools[i].Object, disable))
	}
	requireTunnelsIn(t, l, netip.MustParsePrefix(third))
}

// asking is what goes on between all pairs of nodes.
type asking struct {
	end  chan struct{}
	wg   sync.WaitGroup
	ways []*way
}

// way is one from a pod or a node to the pod of another node.
type way struct {
	name string
	mu   sync.Mutex
	sent int
	open map[uint64]time.Time
}

const (
	askedPort = 5353
	askRate   = 200
	// askedBy is how many sockets take turns; each is closed and opened again, as those of resolvers are.
	askedBy = 400
	// answerIn is how long the last answers may take.
	answerIn = 2 * time.Second
)

// askAll has the pod on every node answer, and pods and nodes ask.
func askAll(t *testing.T, all map[string]asker) *asking {
	t.Helper()
	a := &asking{end: make(chan struct{})}
	for _, to := range all {
		a.answer(t, to.pod)
	}
	for from, asks := range all {
		for to, asked := range all {
			if from == to {
				continue
			}
			for origin, ns := range map[string]netns.NsHandle{from: asks.node, "a pod on " + from: asks.pod} {
				w := &way{name: origin + " to a pod on " + to, open: map[uint64]time.Time{}}
				a.ways = append(a.ways, w)
				a.wg.Go(func() { w.ask(ns, asked.addr, a.end) })
			}
		}
	}
	return a
}

func nodeAddress(t *testing.T, l *lab.Lab, name string) string {
	t.Helper()
	node, err := l.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	t.Fatalf("node %s has no address", name)
	return ""
}

// networkWith finds the network namespace of a process on this machine that has an address.
func networkWith(t *testing.T, address string) netns.NsHandle {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*/ns/net")
	must(t, err)
	seen := map[string]bool{}
	for _, folder := range folders {
		id, err := os.Readlink(folder)
		if err != nil || seen[id] {
			continue
		}
		seen[id] = true
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(folder))))
		if err != nil {
			continue
		}
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			continue
		}
		if has(ns, address) {
			t.Cleanup(func() { _ = ns.Close() })
			return ns
		}
		_ = ns.Close()
	}
	t.Fatalf("no process has address %s", address)
	return netns.None()
}

func has(ns netns.NsHandle, address string) bool {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return false
	}
	defer h.Close()
	all, err := h.AddrList(nil, netlink.FAMILY_V4)
	return err == nil && slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.String() == address })
}

// there runs a function on a thread of its own in another network. Sockets that it opens stay there.
func there(ns netns.NsHandle, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the function
		if netns.Set(ns) == nil {
			do()
		}
	}()
	<-done
}

func (a *asking) answer(t *testing.T, ns netns.NsHandle) {
	t.Helper()
	var conn *net.UDPConn
	var err error
	there(ns, func() { conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: askedPort}) })
	if err != nil || conn == nil {
		t.Fatalf("listening in a pod: %v", err)
	}
	a.wg.Go(func() {
		<-a.end
		time.Sleep(answerIn) //nolint:forbidigo // it is the time that an answer may take
		_ = conn.Close()
	})
	a.wg.Go(func() {
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = conn.WriteToUDPAddrPort(b[:n], from)
			}
		}
	})
}

func (w *way) ask(ns netns.NsHandle, to netip.Addr, end <-chan struct{}) {
	there(ns, func() {
		conns := make([]*net.UDPConn, askedBy)
		tick := time.NewTicker(time.Second / askRate)
		defer tick.Stop()
		for n := uint64(0); ; n++ {
			select {
			case <-end:
				time.Sleep(answerIn) //nolint:forbidigo // it is the time that an answer may take
				for _, c := range conns {
					if c != nil {
						_ = c.Close()
					}
				}
				return
			case <-tick.C:
			}
			i := n % askedBy
			if conns[i] != nil {
				_ = conns[i].Close()
			}
			conns[i] = w.send(to, n)
		}
	})
}

// send asks once, from a socket of its own.
func (w *way) send(to netip.Addr, n uint64) *net.UDPConn {
	w.mu.Lock()
	w.sent++
	w.open[n] = time.Now()
	w.mu.Unlock()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, askedPort)))
	if err != nil {
		return nil // it counts as lost
	}
	go func() {
		b := make([]byte, 512)
		for {
			got, err := c.Read(b)
			if err != nil {
				return
			}
			if got >= 8 {
				w.mu.Lock()
				delete(w.open, binary.BigEndian.Uint64(b))
				w.mu.Unlock()
			}
		}
	}()
	_, _ = c.Write(binary.BigEndian.AppendUint64(nil, n))
	return c
}

// overdue returns nil once something has no answer for too long.
func (a *asking) overdue() error {
	for _, w := range a.ways {
		w.mu.Lock()
		for _, when := range w.open {
			if time.Since(when) > answerIn {
				w.mu.Unlock()
				return nil
			}
		}
		w.mu.Unlock()
	}
	return errors.New("everything is answered")
}

// stop ends the asking, and returns what was lost and what was sent.
func (a *asking) stop(t *testing.T) (lost, sent int) {
	t.Helper()
	close(a.end)
	a.wg.Wait()
	for _, w := range a.ways {
		w.mu.Lock()
		sent += w.sent
		lost += len(w.open)
		var at []time.Time
		for _, when := range w.open {
			at = append(at, when)
		}
		w.mu.Unlock()
		if slices.SortFunc(at, time.Time.Compare); len(at) > 0 {
			t.Logf(
				"%s: %d of %d lost, from %s to %s",
				w.name,
				len(at),
				w.sent,
				at[0].Format("15:04:05.000"),
				at[len(at)-1].Format("15:04:05.000"),
			)
		}
	}
	return lost, sent
}

func (a *asking) requireNoneLost(t *testing.T, during string) {
	t.Helper()
	lost, sent := a.stop(t)
	if lost > 0 || sent == 0 {
		t.Errorf("%s: %d of %d datagrams were lost", during, lost, sent)
	}
	t.Logf("%s: %d datagrams, %d lost", during, sent, lost)
}
