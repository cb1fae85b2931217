package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/lab/haproxy"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestEdge sees that a lab with an edge is what people outside meet: names, balancers that know who is ready, an ingress. Then
// a node and a control plane join in the other network and serve, policies change, all under traffic from outside that loses
// nothing; they leave again; and a node that serves and is simply deleted does lose something.
func TestEdge(t *testing.T) {
	const name = "edge"
	before := labtest.HostState(t)
	topology := lab.Default()
	topology.Name, topology.CNI, topology.ControlPlanes, topology.Edge = name, lab.Calico, 3, true
	topology.Networks = append(topology.Networks, lab.Network{Name: "b", CIDR: netip.MustParsePrefix("172.31.0.0/24")})
	t.Cleanup(func() { _, _ = lab.Down(context.Background(), name) })
	l, err := lab.Up(t.Context(), topology, lab.Options{Progress: t.Logf})
	must(t, err)
	t.Cleanup(func() { logIngress(t, l) }) // before the lab goes
	requireNamesLeadToBalancer(t, l, "a")
	requireUpdates(t, l)
	s := fromOutside(t, l, outsideRates())

	lived := s.during(t, "a node and a control plane joining", func() {
		joinOther(t, l, "b")
	})
	lived.requireNothingLost(t, traffic.Outside)
	lived = s.during(t, "policy Local to Cluster", func() {
		setPolicy(t, l, corev1.ServiceExternalTrafficPolicyCluster)
		requireUp(t, l, "b", lab.IngressBalancer, haproxy.Any, len(inNetwork(l, lab.Worker, "b")))
		requireUp(t, l, "a", lab.IngressBalancer, haproxy.Any, len(inNetwork(l, lab.Worker, "a")))
		requireUp(t, l, "a", lab.IngressBalancer, haproxy.Local, 0) // no pod answers there any more
	})
	lived.requireNothingLost(t, traffic.Outside)
	requireAnswers(t, l, "b")
	lived = s.during(t, "policy Cluster to Local", func() {
		setPolicy(t, l, corev1.ServiceExternalTrafficPolicyLocal)
		requireUp(t, l, "a", lab.IngressBalancer, haproxy.Local, 2) // of three nodes, two have a pod of it
	})
	lived.requireNothingLost(t, traffic.Outside)
	lived = s.during(t, "a node and a control plane leaving", func() {
		leaveOther(t, l, "b")
	})
	lived.requireNothingLost(t, traffic.Outside)
	if t.Failed() {
		return
	}
	requireDeletedNodeLoses(t, l, s)
	s.watch.Stop()

	if _, err := lab.Down(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	labtest.RequireNothingLeft(t, name)
	labtest.RequireUnchanged(t, before)
}

// logIngress shows what the ingress has to say when something was lost.
func logIngress(t *testing.T, l *lab.Lab) {
	if !t.Failed() {
		return
	}
	ctx := context.Background() // the test's has ended
	pods := l.Client().CoreV1().Pods(workload.IngressNamespace)
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, pod := range all.Items {
		said, err := pods.GetLogs(pod.Name, &corev1.PodLogOptions{Timestamps: true}).DoRaw(ctx)
		t.Logf("%s on %s said (%v):\n%s", pod.Name, pod.Spec.NodeName, err, said)
	}
}

// onBastion runs a command where people outside are.
func onBastion(t *testing.T, l *lab.Lab, argv ...string) string {
	t.Helper()
	out, err := l.Exec(t.Context(), l.Edge().Bastion.Machine, argv...)
	must(t, err)
	return strings.TrimSpace(string(out))
}

// requireNamesLeadToBalancer fails the test unless both names have the address of a network's balancer, the API answers there
// by its name, and the ingress does.
func requireNamesLeadToBalancer(t *testing.T, l *lab.Lab, network string) {
	t.Helper()
	edge := l.Edge()
	for _, name := range []string{edge.API, edge.Ingress} {
		if got, want := onBastion(t, l, "dig", "+short", name), edge.Balancers[network].String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	// Beyond an answer this takes a certificate that is good for the name.
	got := onBastion(t, l, l.Kubectl(), "--kubeconfig", edge.Bastion.Kubeconfig, "get", "nodes", "-o", "name")
	for _, node := range l.NodeNames() {
		if !strings.Contains(got, "node/"+node) {
			t.Errorf("from outside there is no %s: %s", node, got)
		}
	}
	if got := onBastion(
		t,
		l,
		"curl",
		"--silent",
		"--max-time",
		"5",
		"http://"+edge.Ingress+"/",
	); !strings.Contains(
		got,
		`"name":"ingress"`,
	) {
		t.Errorf("the ingress says %q", got)
	}
	// Nodes go by the name too.
	for _, node := range l.NodeNames() {
		m, err := l.Machine(node)
		must(t, err)
		if config, err := m.ReadFile(
			t.Context(),
			"/etc/kubernetes/kubelet.conf",
		); err != nil ||
			!strings.Contains(string(config), "https://"+edge.API+":6443") {
			t.Errorf("kubelet on %s does not call %s: %v", node, edge.API, err)
		}
	}
}

// requireUpdates changes a name as who has the key may, and as others may not.
func requireUpdates(t *testing.T, l *lab.Lab) {
	t.Helper()
	edge := l.Edge()
	update := func(with ...string) error {
		script := fmt.Sprintf("server %s\nupdate add probe.%s 30 A 172.31.0.50\nsend\n", edge.NameServer.Addr(), edge.Zone)
		m, err := l.Machine(edge.Bastion.Machine)
		if err != nil {
			return err
		}
		cmd, err := m.Command(t.Context(), append([]string{"nsupdate"}, with...)...)
		if err != nil {
			return err
		}
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	if err := update(); err == nil || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("an update without the key: %v", err)
	}
	if got := onBastion(t, l, "dig", "+short", "probe."+edge.Zone); got != "" {
		t.Errorf("it changed the name to %s", got)
	}
	if err := update("-k", edge.UpdateKey); err != nil {
		t.Errorf("an update with the key: %v", err)
	}
	if got := onBastion(
		t,
		l,
		"dig",
		"+noall",
		"+answer",
		"probe."+edge.Zone,
	); !strings.HasSuffix(got, "172.31.0.50") ||
		!strings.Contains(got, "\t30\t") {
		t.Errorf("the name is %q", got)
	}
}

// fromOutside starts a Service with a pod on each node, and calls it through the ingress, the ingress itself and the API.
func fromOutside(t *testing.T, l *lab.Lab, rates traffic.Rates) *shop {
	t.Helper()
	front := workload.Echo{Namespace: shopNamespace, Name: "front", PartOf: "shop", Replicas: 2}
	objects := append(front.Objects(), workload.Namespace(shopNamespace))
	slices.Reverse(objects)
	if _, err := start(t.Context(), l, shopNamespace, objects); err != nil {
		t.Fatal(err)
	}
	watch, err := traffic.Start(t.Context(), l.Client(), nil)
	must(t, err)
	t.Cleanup(watch.Stop)
	edge := l.Edge()
	m, err := l.Machine(edge.Bastion.Machine)
	must(t, err)
	outpost := traffic.Outpost{
		Name: edge.Bastion.Machine, Command: m.Command, Client: edge.Bastion.Client, Token: edge.Bastion.Token, CA: edge.Bastion.CA,
	}
	calls := traffic.CallEdge(outpost, edge.Ingress, edge.API, rates, "/", "/"+shopNamespace+"/front/")
	must(t, watch.AddOutside(t.Context(), outpost, calls))
	return &shop{watch: watch}
}

// outsideRates are those of clients outside where the cluster leaves them the time.
func outsideRates() traffic.Rates { return traffic.Rates{Request: 20, LookUp: 10} }

// joinOther has a worker join in the first network, in which no pod of the ingress is left to be had, and a worker and a
// control plane in another. It returns when both serve by all balancers that ask them.
func joinOther(t *testing.T, l *lab.Lab, network string) {
	t.Helper()
	for _, in := range []string{"", network} {
		if _, err := l.Workers().Add(t.Context(), lab.Joining{Network: in, Proxy: lab.NFTables}); err != nil {
			t.Fatal(err)
		}
	}
	joined, err := l.ControlPlaneNodes().Add(t.Context(), network)
	must(t, err)
	etcd := etcdOf(t, l)
	added, err := etcd.MemberAddAsLearner(t.Context(), []string{joined.PeerURL()})
	must(t, err)
	began := time.Now()
	eventually(t, 2*settled, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := etcd.MemberPromote(ctx, added.Member.ID)
		return err
	})
	t.Logf("etcd on %s has a vote after %s", joined.Name, time.Since(began).Round(time.Second))
	for _, at := range []string{"a", network} {
		requireUp(t, l, at, lab.APIBalancer, haproxy.ControlPlanes, len(l.ControlPlanes()))
	}
	t.Logf("the API server on %s is ready after %s", joined.Name, time.Since(began).Round(time.Second))
	// Balancers lead new connections to who has fewest.
	eventually(t, settled, func() error {
		statuses, err := l.Balancers().Balanced(t.Context(), "a", lab.APIBalancer)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(statuses, func(s haproxy.Status) bool { return s.Server == joined.Name }); statuses[i].Total == 0 {
			return fmt.Errorf("no client has been led to %s: %+v", joined.Name, statuses)
		}
		return nil
	})
}

// leaveOther takes away again what is in a network.
func leaveOther(t *testing.T, l *lab.Lab, network string) {
	t.Helper()
	if err := l.Fabrics().RemoveNetwork(t.Context(), network); !errors.As(err, new(*lab.InvalidError)) {
		t.Errorf("a network with machines in it is removed: %v", err)
	}
	etcd := etcdOf(t, l)
	members, err := etcd.MemberList(t.Context())
	must(t, err)
	for _, m := range inNetwork(l, lab.ControlPlane, network) {
		// In this order no client is led to an API server whose etcd has gone.
		must(t, l.ControlPlaneNodes().Remove(t.Context(), m.Name))
		i := slices.IndexFunc(members.Members, func(has *etcdserverpb.Member) bool { return has.Name == m.Name })
		if _, err := etcd.MemberRemove(t.Context(), members.Members[i].ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range inNetwork(l, lab.Worker, network) {
		must(t, l.Client().CoreV1().Nodes().Delete(t.Context(), m.Name, metav1.DeleteOptions{}))
		must(t, l.Workers().Remove(t.Context(), m.Name))
	}
	must(t, l.Fabrics().RemoveNetwork(t.Context(), network))
	links, err := l.Exec(t.Context(), "fabric", "ip", "-brief", "link")
	must(t, err)
	if strings.Contains(string(links), "br-"+network) || len(l.Edge().Balancers) != 1 || len(l.APIServers()) != 3 {
		t.Errorf("something of the network is left: %v, %s", l.Edge().Balancers, links)
	}
}

func inNetwork(l *lab.Lab, role lab.Role, network string) (all []lab.Member) {
	for _, m := range l.Members {
		if m.Role == role && m.Network == network {
			all = append(all, m)
		}
	}
	return all
}

// requireUp waits until a balancer finds so many servers up.
func requireUp(t *testing.T, l *lab.Lab, network, program, backend string, want int) {
	t.Helper()
	eventually(t, 2*settled, func() error {
		statuses, err := l.Balancers().Balanced(t.Context(), network, program)
		if err != nil {
			return err
		}
		up := 0
		for _, s := range statuses {
			if s.Backend == backend && s.Up {
				up++
			}
		}
		if up != want {
			return fmt.Errorf("of network %s %d are up, want %d: %+v", network, up, want, statuses)
		}
		return nil
	})
}

// requireAnswers fails the test unless a network's balancer leads to the ingress and to the API.
func requireAnswers(t *testing.T, l *lab.Lab, network string) {
	t.Helper()
	edge := l.Edge()
	balancer := edge.Balancers[network].String()
	if got := onBastion(t, l, "curl", "--silent", "--max-time", "5", "http://"+balancer+"/"); !strings.Contains(got, `"name":"ingress"`) {
		t.Errorf("the ingress at %s says %q", balancer, got)
	}
	ready := []string{"--resolve", edge.API + ":6443:" + balancer, "--cacert", edge.Bastion.CA, "https://" + edge.API + ":6443/readyz"}
	if got := onBastion(t, l, append([]string{"curl", "--silent", "--max-time", "5"}, ready...)...); got != "ok" {
		t.Errorf("the API at %s says %q", balancer, got)
	}
}

// setPolicy changes the ingress's externalTrafficPolicy. The API server keeps or gives the port of health checks.
func setPolicy(t *testing.T, l *lab.Lab, policy corev1.ServiceExternalTrafficPolicy) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"externalTrafficPolicy":%q,"healthCheckNodePort":%d}}`, policy, healthPort(policy))
	_, err := l.Client().CoreV1().Services(workload.IngressNamespace).
		Patch(t.Context(), workload.IngressName, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// healthPort is a port only with policy Local.
func healthPort(policy corev1.ServiceExternalTrafficPolicy) int {
	if policy == corev1.ServiceExternalTrafficPolicyLocal {
		return workload.IngressHealthPort
	}
	return 0
}

// requireDeletedNodeLoses is the control: a node whose pods serve is deleted, just like that, and the clients outside must
// lose something.
func requireDeletedNodeLoses(t *testing.T, l *lab.Lab, s *shop) {
	t.Helper()
	began := time.Now().Truncate(time.Second)
	lived := s.during(t, "deleting a node", func() {
		must(t, l.Workers().Remove(t.Context(), l.NodeNames()[0]))
		eventually(t, settled, func() error {
			soFar := span{from: began, to: time.Now(), heard: s.watch.Snapshot()}
			if soFar.stats(t, traffic.Outside).Failed == 0 {
				return errors.New("nothing was lost")
			}
			return nil
		})
	})
	lost := lived.stats(t, traffic.Outside)
	t.Logf("control: %d of %d requests were lost when a node was deleted", lost.Failed, lost.Sent)
}

// etcdOf is a client of etcd, as an operator's on a control plane.
func etcdOf(t *testing.T, l *lab.Lab) *clientv3.Client { return etcdOn(t, l, l.ControlPlanes()[0]) }

// etcdOn is a client of one member of etcd.
func etcdOn(t *testing.T, l *lab.Lab, controlPlane string) *clientv3.Client {
	t.Helper()
	m, err := l.Machine(controlPlane)
	must(t, err)
	const pki = "/etc/kubernetes/pki/"
	files := map[string][]byte{}
	for _, path := range []string{"etcd/ca.crt", "apiserver-etcd-client.crt", "apiserver-etcd-client.key"} {
		if files[path], err = m.ReadFile(t.Context(), pki+path); err != nil {
			t.Fatal(err)
		}
	}
	own, err := tls.X509KeyPair(files["apiserver-etcd-client.crt"], files["apiserver-etcd-client.key"])
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(files["etcd/ca.crt"])
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://127.0.0.1:2379"}, Context: t.Context(), DialTimeout: settled, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return m.Dial(ctx, "tcp", address)
		})},
	})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
