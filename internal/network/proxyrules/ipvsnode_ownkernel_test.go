//go:build root && ownkernel

package proxyrules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/network/ipvs"
	"github.com/replumb/replumb/internal/testing/ownkernel"
)

// ipvsNode is the machine as a node in mode ipvs, with two pods, and one on another node.
type ipvsNode struct {
	kubernetes.Interface
	kubeconfig, assets string
	etcd               string
	places             map[string]netns.NsHandle
	proxy              *exec.Cmd
}

// The node itself, and the pod on another one.
const (
	here  = "node"
	other = "far"
)

func newIPVSNode(t *testing.T) *ipvsNode {
	t.Helper()
	more, is := ownkernel.Inside()
	if !is {
		t.Skip("TestIPVS runs this one in a machine of its own")
	}
	n := &ipvsNode{places: map[string]netns.NsHandle{}}
	words := strings.Split(more, ",")
	n.kubeconfig, n.assets, n.etcd = words[0], words[1], words[2]
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	must(t, err)
	server, err := url.Parse(config.Host)
	must(t, err)
	forward(t, server.Host, net.JoinHostPort("10.0.2.2", server.Port()))
	etcd, err := url.Parse(n.etcd)
	must(t, err)
	forward(t, etcd.Host, net.JoinHostPort("10.0.2.2", etcd.Port()))
	n.Interface, err = kubernetes.NewForConfig(config)
	must(t, err)
	program(t, "", "sh", "-c", `set -e
		modprobe nf_conntrack # kube-proxy writes to its settings before it loads it
		sysctl -qw net.ipv4.ip_forward=1
		for p in pod1=10.244.0.5 pod2=10.244.0.6 far=10.244.1.7; do
			name=${p%=*} ip=${p#*=}
			ip netns add $name
			ip link add $name type veth peer name eth0 netns $name
			ip link set $name up
			ip -n $name link set lo up; ip -n $name link set eth0 up
			ip -n $name addr add $ip/32 dev eth0
			ip addr add 169.254.1.1/32 dev $name
			ip route add $ip/32 dev $name
			ip -n $name route add 169.254.1.1/32 dev eth0
			ip -n $name route add default via 169.254.1.1 src $ip
		done
		ip addr add 172.30.0.1/32 dev lo`)
	for _, name := range []string{"pod1", "pod2", "far"} {
		ns, err := netns.GetFromName(name)
		must(t, err)
		n.places[name] = ns
		in(t, ns, func() { answer(t, name) })
	}
	return n
}

// in calls f in a network namespace.
func in(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		err := netns.Set(ns)
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// answer has a place tell its name to who connects to port 8080.
func answer(t *testing.T, name string) {
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		t.Error(err)
		return
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = fmt.Fprintln(c, name, c.RemoteAddr())
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
}

func forward(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				d, err := net.Dial("tcp", to)
				if err == nil {
					go func() { _, _ = io.Copy(d, c); _ = d.Close() }()
					_, _ = io.Copy(c, d)
				}
				_ = c.Close()
			}()
		}
	}()
}

// call connects from a place, and returns who answered.
func (n *ipvsNode) call(from, to string) (who string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if from != here {
			runtime.LockOSThread()
			if err = netns.Set(n.places[from]); err != nil {
				return
			}
		}
		var c net.Conn
		if c, err = net.DialTimeout("tcp", to, 2*time.Second); err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		line := make([]byte, 64)
		var read int
		read, err = c.Read(line)
		who, _, _ = strings.Cut(string(line[:read]), "\n")
	}()
	<-done
	return who, err
}

// runProxy starts kube-proxy in a mode, and ends the one that ran before.
func (n *ipvsNode) runProxy(t *testing.T, mode string) {
	t.Helper()
	n.endProxy()
	config := filepath.Join("/run", "proxy-"+mode+".yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: 10.244.0.0/16
hostnameOverride: node1
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0}
ipvs: {excludeCIDRs: [172.30.0.9/32]}
`, mode, n.kubeconfig), 0o600))
	log, err := os.Create("/run/proxy-" + mode + ".log")
	must(t, err)
	n.proxy = exec.Command(filepath.Join(n.assets, "kube-proxy"), "--config="+config, "--v=2")
	n.proxy.Stdout, n.proxy.Stderr = log, log
	must(t, n.proxy.Start())
}

func (n *ipvsNode) endProxy() {
	if n.proxy != nil {
		_ = n.proxy.Process.Kill()
		_ = n.proxy.Wait()
		n.proxy = nil
	}
}

func (n *ipvsNode) addNode(t *testing.T) {
	t.Helper()
	nodes := n.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, metav1.CreateOptions{})
	must(t, err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.30.0.1"}}
	_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
}

// addService makes a Service before all three pods; change is what it has of its own.
func (n *ipvsNode) addService(t *testing.T, name, address string, change func(*corev1.ServiceSpec)) {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if change != nil {
		change(&svc.Spec)
	}
	services := n.CoreV1().Services("default")
	made, err := services.Create(t.Context(), svc, metav1.CreateOptions{})
	must(t, err)
	if made.Spec.Type == corev1.ServiceTypeLoadBalancer {
		made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2." + address[strings.LastIndex(address, ".")+1:]}}
		_, err = services.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		must(t, err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for ip, on := range map[string]string{"10.244.0.5": "node1", "10.244.0.6": "node1", "10.244.1.7": "node2"} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, NodeName: &on, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	_, err = n.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{})
	must(t, err)
}

// addAllKinds makes Services of all kinds, and returns where they are called from where.
func (n *ipvsNode) addAllKinds(t *testing.T) (calls [][2]string) {
	t.Helper()
	local := corev1.ServiceExternalTrafficPolicyLocal
	n.addService(t, "plain", "10.96.0.20", nil)
	n.addService(t, "sticky", "10.96.0.21", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	n.addService(t, "port", "10.96.0.22", func(s *corev1.ServiceSpec) { s.Type, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080 })
	n.addService(t, "port-local", "10.96.0.23", func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, 30081, local
	})
	n.addService(t, "external", "10.96.0.24", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.24"} })
	n.addService(t, "balanced", "10.96.0.25", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer })
	n.addService(t, "balanced-local", "10.96.0.26", func(s *corev1.ServiceSpec) { s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, local })
	n.addService(t, "internal-local", "10.96.0.27", func(s *corev1.ServiceSpec) {
		s.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	})
	n.addService(t, "ranged", "10.96.0.29", func(s *corev1.ServiceSpec) {
		s.Type, s.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"10.244.0.0/16"}
	})
	for _, from := range everywhere() {
		for _, to := range []string{
			"10.96.0.20:80", "10.96.0.21:80", "10.96.0.22:80", "172.30.0.1:30080", "172.30.0.1:30081", "10.96.0.24:80", "192.0.2.24:80",
			"192.0.2.25:80", "192.0.2.26:80", "10.96.0.27:80", "192.0.2.29:80",
		} {
			if from == here && to == "192.0.2.29:80" {
				continue // the node is in none of the ranges
			}
			if from == other && strings.HasPrefix(to, "10.96.") {
				continue // its own node leads it to ClusterIPs
			}
			calls = append(calls, [2]string{from, to})
		}
	}
	return calls
}

// await returns when something holds, and fails with the state of the node when it does not within
// two minutes.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	late := time.After(2 * time.Minute)
	for !holds() {
		select {
		case <-late:
			t.Fatalf("not so: %s\n%s", what, state(t))
		case <-tick.C:
		}
	}
}

// awaitAll returns when every call is answered.
func (n *ipvsNode) awaitAll(t *testing.T, calls [][2]string) {
	t.Helper()
	for _, c := range calls {
		await(t, c[0]+" reaches "+c[1], func() bool {
			_, err := n.call(c[0], c[1])
			return err == nil
		})
	}
}

func state(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, command := range []string{"ipvsadm -Sn", "ipset save", "iptables-save", "ip -br addr", "ipvsadm -Lcn", "tail -n 30 /run/proxy-*.log"} {
		fmt.Fprintf(&all, "-- %s --\n%s", command, program(t, "", "sh", "-c", command+" 2>&1 || true"))
	}
	return all.String()
}

// lost is what a set of calls has lost in a while.
type lost struct {
	mu           sync.Mutex
	sent, failed int
	by           map[[2]string]int
	how          []string
	// unmeasured have timed out while the machine stood still, for want of its host's processors.
	unmeasured int
	stood      time.Time
}

// still is longer than a machine that is only slow leaves a goroutine waiting.
const still = 500 * time.Millisecond

// watch takes down when the machine stood still last.
func (l *lost) watch(ctx context.Context) {
	tick := time.NewTicker(still / 10)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(last) > still {
			l.mu.Lock()
			l.stood = now
			l.mu.Unlock()
		}
		last = now
	}
}

func (l *lost) count(c [2]string, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	var timeout net.Error
	switch {
	case err == nil:
	case errors.As(err, &timeout) && timeout.Timeout() && l.stood.After(began):
		l.unmeasured++
	default:
		l.failed++
		l.by[c]++
		l.how = append(l.how, fmt.Sprintf("%s %v", began.Format("15:04:05.000"), err))
	}
}

// during makes all calls in turn, from each place at once, while f runs.
func (n *ipvsNode) during(t *testing.T, calls [][2]string, f func()) *lost {
	t.Helper()
	l := &lost{by: map[[2]string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { l.watch(ctx) })
	for _, from := range everywhere() {
		all.Go(func() {
			for ctx.Err() == nil {
				for _, c := range calls {
					if c[0] != from {
						continue
					}
					began := time.Now()
					_, err := n.call(c[0], c[1])
					l.count(c, began, err)
				}
			}
		})
	}
	f()
	stop()
	all.Wait()
	return l
}

// everywhere are the places that call.
func everywhere() []string { return []string{here, "pod1", "pod2", "far"} }

// frontends are how many the rules of a mode lead from.
func frontends(t *testing.T, mode string) int {
	t.Helper()
	all := Frontends{}
	switch mode {
	case IPVS:
		all, err := ipvs.Servers()
		must(t, err)
		return len(all)
	case IPTables:
		all.ofIPTables(program(t, "", "iptables-save", "-t", "nat"), false)
	case NFTables:
		must(t, Programs{}.takeMaps(t.Context(), all, family{"iptables", "ip"}, proxyTable))
	}
	return len(all)
}

// awaitMode returns when rules of a mode lead from as many addresses as there are to be.
func awaitMode(t *testing.T, mode string, least int) {
	t.Helper()
	await(t, fmt.Sprintf("mode %s leads from %d addresses", mode, least), func() bool { return frontends(t, mode) >= least })
}

// held are connections that stay open.
type held map[[2]string]net.Conn

func (n *ipvsNode) hold(t *testing.T, calls [][2]string) held {
	t.Helper()
	all := held{}
	for _, c := range calls {
		conn := n.dial(t, c[0], c[1])
		if !echoes(conn) {
			t.Errorf("%s to %s does not answer from the first", c[0], c[1])
		}
		all[c] = conn
	}
	return all
}

func (n *ipvsNode) dial(t *testing.T, from, to string) (c net.Conn) {
	t.Helper()
	ns := n.places[from]
	if from == here {
		own, err := netns.Get()
		must(t, err)
		ns = own
	}
	in(t, ns, func() {
		var err error
		if c, err = net.DialTimeout("tcp", to, 5*time.Second); err != nil {
			t.Errorf("%s to %s: %v", from, to, err)
		}
	})
	return c
}

func echoes(c net.Conn) bool {
	if c == nil {
		return false
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // a broken one never answers
	if _, err := c.Write([]byte("again\n")); err != nil {
		return false
	}
	data := make([]byte, 256)
	for read := 0; !strings.Contains(string(data[:read]), "again"); {
		m, err := c.Read(data[read:])
		if err != nil || read+m == len(data) {
			return false
		}
		read += m
	}
	return true
}

// broken closes all, and returns those that did not answer any more.
func (h held) broken() (out [][2]string) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for of, c := range h {
		all.Go(func() {
			if !echoes(c) {
				mu.Lock()
				out = append(out, of)
				mu.Unlock()
			}
			if c != nil {
				_ = c.Close()
			}
		})
	}
	all.Wait()
	return out
}

func (l *lost) String() string {
	return fmt.Sprintf("%d of %d lost %v %q, %d not measured", l.failed, l.sent, l.by, l.how, l.unmeasured)
}
