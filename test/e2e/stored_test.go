package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// Services that no hop can move without losing something: one with an address of MetalLB and a health-check port, one with node ports, one with an
// address outside, and one that leads to endpoints of its own node alone.
const storedServices = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: balanced}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app.kubernetes.io/name: front}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: ported}
spec:
  type: NodePort
  selector: {app.kubernetes.io/name: cart}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: outside}
spec:
  externalIPs: [192.0.2.77]
  selector: {app.kubernetes.io/name: catalog}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: near}
spec:
  internalTrafficPolicy: Local
  selector: {app.kubernetes.io/name: front}
  ports: [{name: http, port: 80, targetPort: http}]
`

const (
	storedOutside = "192.0.2.77"
	// storedEtcd is how a control plane reaches its etcd.
	storedEtcd = `etcd: {endpoints: ["https://127.0.0.1:2379"], caFile: /etc/kubernetes/pki/etcd/ca.crt, ` +
		`certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt, keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key}`
)

// storedBehind are the servers behind them.
func storedBehind() map[string]string {
	return map[string]string{"balanced": "front", "ported": "cart", "outside": "catalog", "near": "front"}
}

// TestStored moves Services by etcd that no hop can move, from a control plane as its administrator would: there, back, there again, and to the
// end of finish. Pods of every node call them by name, at old addresses and at those outside; another machine connects to MetalLB's address, to
// 500 node ports a second and to health-check ports. Nothing may be lost, and who watches Services sees addresses of the cluster's range change and
// nothing else: no other type, no deletion, no other ports or status. The control hops: MetalLB takes its address back.
func TestStored(t *testing.T) {
	topology := named("e2e-stored")
	topology.With = []lab.Addon{lab.MetalLB}
	l := bringUp(t, topology)
	forgetNamesSoon(t, l)
	s := newStoredShop(t, l)

	seen := watchAddresses(t, l, shopNamespace, func(svc *corev1.Service) bool { return storedBehind()[svc.Name] != "" })
	for _, round := range []struct {
		what string
		args []string
		want string
	}{
		{"the move", []string{"apply", "-f", s.file}, newRange},
		{"the way back", []string{"rollback", "stored", "--yes"}, oldRange},
	} {
		s.steadily(round.what, traffic.All, func() { s.replumb(round.args...) })
		s.requireAt(round.want)
	}
	requireNoTrace(t, l)
	s.steadily("the move again", traffic.All, func() { s.replumb("apply", "-f", s.file) })
	s.requireAt(newRange)
	s.leaveOldAddresses()
	s.steadily(
		"finish",
		func(from traffic.Source) bool { return from.Via != traffic.ByOldAddress },
		func() { s.replumb("finish", "stored", "--yes") },
	)
	requireNoTrace(t, l)
	seen.requireOnlyAddresses(t)

	lost := s.outside(func() { s.hopBare("balanced") })
	if got := lost["balanced"]; got.Failed() == 0 {
		t.Errorf("control: a hop of the Service with MetalLB's address lost nothing: %s", got)
	}
	t.Logf("control: a hop of the Service with MetalLB's address: %s", lost["balanced"])
}

// storedShop is the shop with those Services, and who calls them.
type storedShop struct {
	*inCluster
	k *knocker
	// doors are where another machine connects to, and how often a second.
	doors map[string]storedDoor
	// file is the Migration, command prepares replumb on the control plane.
	file    string
	command func(t *testing.T, args ...string) *exec.Cmd
}

type storedDoor struct {
	at   netip.AddrPort
	rate int
}

func newStoredShop(t *testing.T, l *lab.Lab) *storedShop {
	t.Helper()
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	s := &storedShop{inCluster: &inCluster{T: t, l: l}, doors: map[string]storedDoor{}, command: onControlPlane(t, l)}
	s.apply(storedServices)
	s.findDoors()
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), s.calls(traffic.ByName, traffic.ByOldAddress, traffic.ByNewAddress))
	must(t, err)
	t.Cleanup(watch.Stop)
	s.s = &shop{watch: watch}
	s.s.steady(t)
	fabric, err := l.Machine(l.Machines()[0])
	must(t, err)
	s.k = knock(t, fabric)
	s.await("all doors are open", func() error {
		for name, got := range s.outside(func() {}) {
			if got.Failed() > 0 {
				return fmt.Errorf("%s: %s", name, got)
			}
		}
		return nil
	})
	s.write()
	return s
}

// calls are those of pods: by name, at the addresses of the cluster, and, by what is called a new address here, at the one outside.
func (s *storedShop) calls(ways ...traffic.Via) traffic.Calls {
	s.Helper()
	calls := traffic.Calls{Namespace: shopNamespace, Targets: map[traffic.Via][]probe.Target{}}
	services := shopServices(s.T, s.l)
	for name, server := range storedBehind() {
		hosts := map[traffic.Via]string{traffic.ByName: name, traffic.ByOldAddress: services[name].Spec.ClusterIP}
		if name == "outside" {
			hosts[traffic.ByNewAddress] = storedOutside
		}
		for _, way := range ways {
			if hosts[way] == "" {
				continue
			}
			calls.Targets[way] = append(calls.Targets[way], probe.Target{
				Name: name, Kind: probe.HTTP, Address: hosts[way] + ":80", Rate: 20, ExpectServer: server,
			})
		}
	}
	return calls
}

// findDoors waits for MetalLB, and finds what a machine outside can connect to.
func (s *storedShop) findDoors() {
	s.Helper()
	var balanced corev1.Service
	s.await("MetalLB gives an address", func() error {
		if balanced = shopServices(s.T, s.l)["balanced"]; len(balanced.Status.LoadBalancer.Ingress) == 0 {
			return errors.New("it has given none")
		}
		return nil
	})
	s.doors["balanced"] = storedDoor{netip.AddrPortFrom(netip.MustParseAddr(balanced.Status.LoadBalancer.Ingress[0].IP), 80), 100}
	ported := shopServices(s.T, s.l)["ported"]
	for _, m := range s.l.Members {
		if m.Role != lab.Worker {
			continue
		}
		s.doors["node port at "+m.Name] = storedDoor{netip.AddrPortFrom(m.Address, uint16(ported.Spec.Ports[0].NodePort)), 250}
		s.doors["health-check port at "+m.Name] = storedDoor{netip.AddrPortFrom(m.Address, uint16(balanced.Spec.HealthCheckNodePort)), 20}
	}
}

// outside connects to all doors while something is done and for a while before and after, and returns what became of that.
func (s *storedShop) outside(do func()) map[string]knocks {
	s.Helper()
	for name, d := range s.doors {
		s.k.open(name, d.at, d.rate)
	}
	s.pause(time.Second)
	do()
	for name := range s.doors {
		s.k.close(name, knockTail)
	}
	s.pause(knockTail + knockPatience)
	seen := map[string]knocks{}
	for name := range s.doors {
		seen[name] = s.k.seen(name)
	}
	return seen
}

// pause lets what is called outside of this process go on.
func (s *storedShop) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.Context().Done():
	}
}

// steadily fails the test for what is lost while something is done.
func (s *storedShop) steadily(what string, chosen func(traffic.Source) bool, do func()) {
	s.Helper()
	var doors map[string]knocks
	lived := s.s.during(s.T, what, func() { doors = s.outside(do) })
	lived.requireNothingLost(s.T, chosen)
	if got := lived.stats(s.T, func(from traffic.Source) bool { return from.Via == traffic.ByNewAddress }); got.Sent == 0 {
		s.Errorf("%s: the address outside was not called", what)
	} else {
		s.Logf("%s, from pods at the address outside: %d requests, %d failed", what, got.Sent, got.Failed)
	}
	for name, got := range doors {
		s.Logf("%s, %s: %s", what, name, got)
		if got.Failed() > 0 || got.Tried == 0 {
			s.Errorf("%s, %s: %s", what, name, got)
		}
	}
}

// leaveOldAddresses has pods call names alone, and the address outside: finish waits for who calls old addresses.
func (s *storedShop) leaveOldAddresses() {
	s.Helper()
	s.s.watch.Stop()
	removeClients(s.T, s.l, shopNamespace)
	watch, err := traffic.Start(s.Context(), s.l.Client(), s.l.NodeNames(), s.calls(traffic.ByName, traffic.ByNewAddress))
	must(s, err)
	s.Cleanup(watch.Stop)
	s.s = &shop{watch: watch}
	s.s.steady(s.T)
}

// write puts the Migration and a kubeconfig where the control plane finds them.
func (s *storedShop) write() {
	s.Helper()
	s.file = writeSpec(s.T, "stored", `
  serviceCIDR:
    to: [%s]
    drain: %s
    clusterServices: Stay
    refresh: {mode: Report}
    strategies: {nodePort: Etcd, loadBalancer: Etcd}
    %s
  batch: {size: 4, settle: 1s}
`, newRange, shortDrain, storedEtcd)
}

// onControlPlane has replumb run where an administrator finds the certificates of etcd.
func onControlPlane(t *testing.T, l *lab.Lab) func(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	config, err := clientcmd.LoadFromFile(l.Kubeconfig())
	must(t, err)
	for _, c := range config.Clusters {
		c.Server = "https://127.0.0.1:6443"
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	m, err := l.Machine(l.ControlPlanes()[0])
	must(t, err)
	return func(t *testing.T, args ...string) *exec.Cmd {
		t.Helper()
		cmd, err := m.Command(t.Context(), append([]string{filepath.Join(binaries(t), "replumb"), "--kubeconfig", kubeconfig}, args...)...)
		must(t, err)
		return cmd
	}
}

// replumb runs a command on the control plane.
func (s *storedShop) replumb(args ...string) string {
	s.Helper()
	out, err := s.command(s.T, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		s.Fatalf("replumb %s: %v\n%s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	if err != nil {
		s.Fatal(err)
	}
	return string(out)
}

// requireAt fails the test unless all Services of the shop are in a range, those that no hop can move included.
func (s *storedShop) requireAt(want string) {
	s.Helper()
	requireAllIn(s.T, s.l, want)
}

// hopBare moves a Service by the two patches of a hop.
func (s *storedShop) hopBare(name string) {
	s.Helper()
	services := s.l.Client().CoreV1().Services(shopNamespace)
	was, err := services.Get(s.Context(), name, metav1.GetOptions{})
	must(s, err)
	for _, spec := range []map[string]any{
		{
			"type": corev1.ServiceTypeExternalName, "externalName": "example.com", "clusterIP": nil, "clusterIPs": nil, "ipFamilies": nil,
			"ipFamilyPolicy": nil, "internalTrafficPolicy": nil, "externalTrafficPolicy": nil, "healthCheckNodePort": nil,
			"allocateLoadBalancerNodePorts": nil,
		},
		{"type": was.Spec.Type, "externalName": nil, "ports": was.Spec.Ports, "externalTrafficPolicy": was.Spec.ExternalTrafficPolicy},
	} {
		body, err := json.Marshal(map[string]any{"spec": spec})
		if err == nil {
			_, err = services.Patch(s.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
		}
		if err != nil {
			s.Fatal(err)
		}
		s.pause(time.Second) // as long as its controller may take to see it
	}
}

// storedSeen is what a watch of those Services has seen that is not a change of address.
type storedSeen struct {
	mu      sync.Mutex
	first   map[types.NamespacedName]*corev1.Service
	changes int
	other   []string
}

// watchAddresses watches chosen Services of a namespace, or of all, until the test ends.
func watchAddresses(t *testing.T, l *lab.Lab, namespace string, chosen func(*corev1.Service) bool) *storedSeen {
	t.Helper()
	seen := &storedSeen{first: map[types.NamespacedName]*corev1.Service{}}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w, err := l.Client().CoreV1().Services(namespace).Watch(ctx, metav1.ListOptions{})
	must(t, err)
	go func() {
		for e := range w.ResultChan() {
			if svc, ok := e.Object.(*corev1.Service); ok && chosen(svc) {
				seen.see(e.Type, svc)
			}
		}
	}()
	return seen
}

func (s *storedSeen) see(what watch.EventType, svc *corev1.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	first := s.first[key]
	if first == nil {
		s.first[key] = svc
		return
	}
	is := services.AsOwned(svc).DeepCopy() // some keep their other address themselves
	if is.Spec.ClusterIP != first.Spec.ClusterIP {
		s.changes++
	}
	is.Spec.ClusterIP, is.Spec.ClusterIPs = first.Spec.ClusterIP, first.Spec.ClusterIPs
	if what == watch.Deleted || !equality.Semantic.DeepEqual(is.Spec, first.Spec) ||
		!equality.Semantic.DeepEqual(is.Status, first.Status) ||
		is.DeletionTimestamp != nil {
		s.other = append(s.other, fmt.Sprintf("%s %s: %+v %+v", what, key, is.Spec, is.Status))
	}
}

// requireOnlyAddresses fails the test for all that was seen beside changes of addresses, and if there was none of those.
func (s *storedSeen) requireOnlyAddresses(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes == 0 {
		t.Error("no change of an address was seen: the watch has broken off")
	}
	for _, o := range s.other {
		t.Errorf("a watch has seen more than addresses change: %s", o)
	}
	s.other = nil
}
