package e2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// minOutside is how many requests have to be made while all nodes move, for their success to mean something.
const minOutside = 20_000

// TestNodesMove moves two workers and three control planes with their etcd from one network to another: by the file that the
// runbook shows, run where people outside are, whose actions make and end machines. The process is killed on the way. Clients
// outside call the ingress and the API by name, and clients inside a Service by name and the API. Then the old network is taken
// away. Nothing may be lost, and etcd must have everything it had.
func TestNodesMove(t *testing.T) {
	l := bringUp(t, twoNetworks("e2e-vpc"))
	s := fromOutside(t, l, outsideRates())
	fromInside(t, l, s, traffic.Rates{Request: 5, LookUp: 2})
	o := &owner{t: t, lab: l}
	moved := o.moveAll(s)
	moved.requireNothingLost(t, traffic.All)
	moved.requireMany(t, minOutside)
	o.requireMoved()
	o.requireEverything()
	s.watch.Stop() // what clients on a deleted node saw can no longer be read
	requireDeletedNodeLoses(t, l, fromOutside(t, l, outsideRates()))
}

// moveAll moves all nodes by the example's file, killed on the way, finishes, and takes the old network away.
func (o *owner) moveAll(s *shop) span {
	o.t.Helper()
	file := o.file()
	return s.during(o.t, "the move of all nodes", func() {
		for _, at := range []string{"ahead/", "drain/", "learner/", "etcd/removed/"} {
			o.killed(file, at)
		}
		o.replumb("apply", "-f", file)
		o.replumb("finish", "vpc", "--yes")
		must(o.t, o.lab.Fabrics().RemoveNetwork(o.t.Context(), "a"))
	})
}

// requireMany fails the test unless so many requests were made: fewer prove little.
func (sp span) requireMany(t *testing.T, least int) {
	t.Helper()
	if sent := sp.stats(t, traffic.All).Sent; sent < least {
		t.Errorf("only %d requests were made, which prove little; want %d", sent, least)
	}
}

// TestNodesReplace moves two workers, and three control planes that are stopped and come back with the data of their etcd: one volume, one
// writer. The process is killed where a control plane is about to stop, to come back, and when it is back and the others don't know where. Then the
// old network is taken away.
func TestNodesReplace(t *testing.T) {
	l := bringUp(t, twoNetworks("e2e-replace"))
	s := fromOutside(t, l, outsideRates())
	o := &owner{t: t, lab: l, replaces: true}
	file := o.file()
	members := o.members()

	moved := s.during(t, "the move of all nodes, and of control planes with their data", func() {
		for _, at := range []string{"terminate/cp", "provision/cp", "address/cp"} {
			o.killed(file, at)
		}
		o.replumb("apply", "-f", file)
		o.replumb("finish", "vpc", "--yes")
		must(t, l.Fabrics().RemoveNetwork(t.Context(), "a"))
	})
	moved.requireNothingLost(t, traffic.All)
	o.requireMoved()
	o.requireEverything()
	if now := o.members(); !maps.Equal(members, now) {
		t.Errorf("the members of etcd were %x, and are %x", members, now)
	}
}

// twoNetworks has three control planes with people outside, and a network without nodes.
func twoNetworks(name string) lab.Topology {
	topology := highlyAvailable(name)
	topology.CNI, topology.Edge = lab.Calico, true
	topology.Networks = append(topology.Networks, lab.Network{Name: "b", CIDR: netip.MustParsePrefix("172.31.0.0/24")})
	return topology
}

// members of etcd by name, with their IDs.
func (o *owner) members() map[string]uint64 {
	o.t.Helper()
	answer, err := etcdOf(o.t, o.lab).MemberList(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	all := map[string]uint64{}
	for _, m := range answer.Members {
		all[m.Name] = m.ID
	}
	return all
}

// fromInside has clients on all nodes, which move with them, call a Service and the API.
func fromInside(t *testing.T, l *lab.Lab, s *shop, rates traffic.Rates) {
	t.Helper()
	const callers = insideNamespace
	if _, err := start(t.Context(), l, callers, []runtime.Object{workload.Namespace(callers)}); err != nil {
		t.Fatal(err)
	}
	svc, err := l.Client().CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	must(t, err)
	echo := workload.Echo{Namespace: callers, Name: "cart", PartOf: "inside", Replicas: 3}
	callees, err := start(t.Context(), l, callers, echo.Objects())
	must(t, err)
	for _, calls := range []traffic.Calls{traffic.Call(callers, callees, rates), traffic.CallAPI(callers, svc.Spec.ClusterIP, rates)} {
		must(t, s.watch.AddRoving(t.Context(), l.Client(), l.NodeNames(), calls))
	}
}

// insideNamespace has clients inside, and what they call.
const insideNamespace = "inside"

// owner is who owns the machines: replumb calls it by a socket, and it acts as a cloud does.
type owner struct {
	t   *testing.T
	lab *lab.Lab
	// replaces says that control planes come back with their data, instead of others that join first.
	replaces bool
	// had is what etcd had when the last control plane was about to join, at a revision that it still has at the end.
	had contents
}

// file writes the Migration, and answers its actions until the test ends.
func (o *owner) file() string {
	t := o.t
	t.Helper()
	dir, err := os.MkdirTemp("", "replumb-owner-") // a socket's path may have 107 characters
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	action := answering(t, dir, o.serve)
	o.keys(dir)
	m := o.migration()
	o.fill(m, dir, action)
	body, err := yaml.Marshal(m)
	must(t, err)
	path := filepath.Join(dir, "vpc.yaml")
	must(t, os.WriteFile(path, body, 0o600))
	return path
}

// answering has actions answered by a handler until the test ends.
func answering(t *testing.T, dir string, handler http.HandlerFunc) *v1alpha1.Action {
	t.Helper()
	socket := filepath.Join(dir, "owner.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must(t, err)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: settled}
	go func() { _ = server.Serve(listener) }() // it ends when the server is closed
	t.Cleanup(func() { _ = server.Close() })
	return &v1alpha1.Action{
		Exec: &v1alpha1.ExecAction{Command: []string{
			"curl", "--silent", "--show-error", "--fail-with-body", "--unix-socket", socket, "--data", "@-", "http://owner/",
		}},
		Timeout: &metav1.Duration{Duration: 10 * time.Minute},
	}
}

// migration is the example that the runbook shows.
func (o *owner) migration() *v1alpha1.Migration {
	o.t.Helper()
	body, err := os.ReadFile("../../examples/nodes/vpc.yaml")
	if err != nil {
		o.t.Fatal(err)
	}
	m, err := spec.Parse(body)
	if err != nil {
		o.t.Fatal(err)
	}
	return m
}

// fill in what is different in every lab: addresses, files, and who is called.
func (o *owner) fill(m *v1alpha1.Migration, dir string, action *v1alpha1.Action) {
	edge, n := o.lab.Edge(), m.Spec.Nodes
	c := n.ControlPlane
	for _, r := range []*v1alpha1.RecordSpec{&n.Records[0], &c.Records[0]} {
		r.From, r.To = []string{edge.Balancers["a"].String()}, []string{edge.Balancers["b"].String()}
		r.Provider.RFC2136.Server, r.Provider.RFC2136.TSIGKeyFile = edge.NameServer.String(), edge.UpdateKey
	}
	n.Join.Provision, n.Terminate.Action, c.Provision, c.Retire, c.Terminate = action, action, action, action, action
	c.Etcd.CAFile, c.Etcd.CertFile, c.Etcd.KeyFile = filepath.Join(
		dir,
		"ca.crt",
	), filepath.Join(
		dir,
		"client.crt",
	), filepath.Join(
		dir,
		"client.key",
	)
	c.Etcd.SnapshotFile, c.Etcd.Endpoints = filepath.Join(dir, "snapshot.db"), nil
	for _, m := range inNetwork(o.lab, lab.ControlPlane, "a") {
		c.Etcd.Endpoints = append(c.Etcd.Endpoints, "https://"+netip.AddrPortFrom(m.Address, 2379).String())
	}
	m.Spec.Image, m.Spec.Proof.Agents = workload.ReplumbImage, v1alpha1.AgentsDisabled
	if o.replaces {
		c.Mode = v1alpha1.ControlPlaneReplace
	}
}

// keys are those of a client of etcd.
func (o *owner) keys(dir string) {
	o.t.Helper()
	m, err := o.lab.Machine(o.lab.ControlPlanes()[0])
	if err != nil {
		o.t.Fatal(err)
	}
	for from, to := range map[string]string{
		"etcd/ca.crt": "ca.crt", "apiserver-etcd-client.crt": "client.crt", "apiserver-etcd-client.key": "client.key",
	} {
		data, err := m.ReadFile(o.t.Context(), "/etc/kubernetes/pki/"+from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), data, 0o600)
		}
		if err != nil {
			o.t.Fatal(err)
		}
	}
}

func (o *owner) serve(w http.ResponseWriter, r *http.Request) {
	var request nodes.Request
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &request)
	}
	var answer any
	if err == nil {
		// A client that was killed does not undo half a machine.
		answer, err = o.act(context.WithoutCancel(r.Context()), &request)
	}
	if err != nil {
		o.t.Logf("%s failed: %v", request.Action, err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// act does what replumb asks for. It may be asked again.
func (o *owner) act(ctx context.Context, r *nodes.Request) (any, error) {
	o.t.Logf("%s %s %s", r.Action, r.Role, nameOf(r.Node))
	switch string(r.Role) + "/" + r.Action {
	case "worker/provision":
		proxy := lab.NFTables
		if o.lab.Topology.Installer == lab.Kubeadm {
			proxy = lab.IPTables // all have one mode
		}
		for len(inNetwork(o.lab, lab.Worker, "b")) < r.Count {
			if _, err := o.lab.Workers().Add(ctx, lab.Joining{Network: "b", Proxy: proxy}); err != nil {
				return nil, err
			}
		}
	case "worker/terminate":
		if o.lab.Topology.Edge {
			o.requireLocal(ctx, "when "+r.Node.Name+" ends")
		}
		if slices.Contains(o.lab.NodeNames(), r.Node.Name) {
			return nil, o.lab.Workers().Remove(ctx, r.Node.Name)
		}
	case "control-plane/provision":
		var err error
		if o.had, err = contentsAt(ctx, etcdOf(o.t, o.lab), 0); err != nil {
			return nil, err
		}
		m, err := o.controlPlane(ctx, r.Node.Name)
		if err != nil {
			return nil, err
		}
		return v1alpha1.MemberStatus{Name: m.Name, PeerURL: m.PeerURL()}, nil
	case "control-plane/retire":
		if o.lab.Topology.Installer == lab.Kubeadm {
			const retire = "if [ -e manifests/kube-apiserver.yaml ]; then mv manifests/kube-apiserver.yaml .; fi"
			_, err := o.lab.Shell(ctx, r.Node.Name, "cd /etc/kubernetes; "+retire)
			return nil, err
		}
		m, err := o.lab.Machine(r.Node.Name)
		if err != nil {
			return nil, err
		}
		return nil, m.Stop(ctx, "kube-apiserver")
	case "control-plane/terminate":
		switch {
		case !slices.Contains(o.lab.ControlPlanes(), r.Node.Name):
		case o.replaces:
			return nil, o.lab.ControlPlaneNodes().Stop(ctx, r.Node.Name)
		default:
			return nil, o.lab.ControlPlaneNodes().Remove(ctx, r.Node.Name)
		}
	default:
		return nil, errors.New("that is not done here")
	}
	return nil, nil
}

// controlPlane is one that joins in the new network in the stead of another, or that one, once it was stopped.
func (o *owner) controlPlane(ctx context.Context, replaces string) (*lab.Member, error) {
	if !o.replaces {
		return o.lab.ControlPlaneNodes().Add(ctx, "b")
	}
	for _, m := range inNetwork(o.lab, lab.ControlPlane, "b") {
		if m.Name == replaces {
			return &m, nil
		}
	}
	return o.lab.ControlPlaneNodes().ComeBack(ctx, replaces, "b")
}

func nameOf(n *v1alpha1.NodeStatus) string {
	if n == nil {
		return ""
	}
	return n.Name
}

// replumb runs a command to its end where people outside are.
func (o *owner) replumb(args ...string) {
	o.t.Helper()
	cmd := o.command(args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		o.t.Fatalf("replumb %s: %v\n%s", strings.Join(args, " "), err, tailOf(out))
	}
	for line := range strings.Lines(tailOf(out)) {
		o.t.Log(strings.TrimRight(line, "\n"))
	}
}

func tailOf(out []byte) string {
	const most = 4000
	return string(out[max(0, len(out)-most):])
}

// killed runs apply until a step whose name begins so has begun, and kills it.
func (o *owner) killed(file, step string) {
	o.t.Helper()
	cmd := o.command("apply", "-f", file, "-o", "json")
	runUntil(o.t, cmd, func(e engine.Event) bool { return e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, step) })
}

// command of replumb, where people outside are.
func (o *owner) command(args ...string) *exec.Cmd {
	o.t.Helper()
	edge := o.lab.Edge()
	m, err := o.lab.Machine(edge.Bastion.Machine)
	if err != nil {
		o.t.Fatal(err)
	}
	cmd, err := m.Command(
		o.t.Context(),
		append([]string{filepath.Join(binaries(o.t), "replumb"), "--kubeconfig", edge.Bastion.Kubeconfig}, args...)...)
	if err != nil {
		o.t.Fatal(err)
	}
	return cmd
}

// requireMoved fails the test unless all that is left is in the new network, under the old names.
func (o *owner) requireMoved() {
	t, l := o.t, o.lab
	t.Helper()
	for _, m := range l.Members {
		if m.Network == "a" {
			t.Errorf("%s %s is in the old network", m.Role, m.Name)
		}
	}
	edge := l.Edge()
	for _, name := range []string{edge.API, edge.Ingress} {
		if got, want := onBastion(t, l, "dig", "+short", name), edge.Balancers["b"].String(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	o.requireLocal(t.Context(), "at the end")
	all, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	want := 2
	if l.Topology.Installer == lab.Kubeadm { // whose control planes are Nodes
		want += l.Topology.ControlPlanes
	}
	if len(all.Items) != want {
		t.Errorf("there are %d Nodes, want %d", len(all.Items), want)
	}
}

// requireLocal fails the test unless the Service of the ingress is as it was: it is from when ingress has moved, before the first node is empty.
func (o *owner) requireLocal(ctx context.Context, when string) {
	svc, err := o.lab.Client().CoreV1().Services(workload.IngressNamespace).Get(ctx, workload.IngressName, metav1.GetOptions{})
	if err != nil {
		o.t.Error(err)
		return
	}
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal ||
		svc.Spec.HealthCheckNodePort != workload.IngressHealthPort {
		o.t.Errorf("%s the ingress has the policy %s and the port %d", when, svc.Spec.ExternalTrafficPolicy, svc.Spec.HealthCheckNodePort)
	}
}

// contents of etcd at a revision.
type contents struct {
	revision int64
	keys     int
	hash     [sha256.Size]byte
}

// contentsAt reads all keys at a revision; zero is the present one.
func contentsAt(ctx context.Context, client *clientv3.Client, revision int64) (contents, error) {
	const page = 500
	c := contents{revision: revision}
	h, from := sha256.New(), "\x00"
	for {
		got, err := client.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(page), clientv3.WithRev(c.revision))
		if err != nil {
			return c, err
		}
		c.revision = cmp.Or(c.revision, got.Header.Revision)
		for _, kv := range got.Kvs {
			fmt.Fprintf(h, "%q %q %d %d %d %d\n", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease)
		}
		if c.keys += len(got.Kvs); !got.More {
			c.hash = [sha256.Size]byte(h.Sum(nil))
			return c, nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// requireEverything fails the test unless etcd has a member for each control plane, which have what the old ones had at a revision before the last
// of them went.
func (o *owner) requireEverything() {
	t := o.t
	t.Helper()
	client := etcdOf(t, o.lab)
	members, err := client.MemberList(t.Context())
	must(t, err)
	learners := 0
	for _, m := range members.Members {
		if m.IsLearner {
			learners++
		}
	}
	if want := o.lab.Topology.ControlPlanes; len(members.Members) != want || learners > 0 {
		t.Errorf("etcd has the members %v, want %d that vote", members.Members, want)
	}
	has, err := contentsAt(t.Context(), client, o.had.revision)
	must(t, err)
	if has != o.had || has.keys == 0 {
		t.Errorf("at revision %d etcd has %d keys, and had %d: %x, %x", has.revision, has.keys, o.had.keys, has.hash, o.had.hash)
	}
	t.Logf("etcd has the %d keys it had at revision %d", has.keys, has.revision)
}
