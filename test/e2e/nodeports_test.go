package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

const (
	doorsNamespace = "doors"
	// doors is how many Services with node ports move there and back, bareDoors how many the naive way.
	doors, bareDoors = 30, 15
	// knockRate is how many new connections a second are made at a node port at each node: 500 at both.
	knockRate = 250
	// knockTail is how much longer they are made than a move takes: kube-proxies sync after a second at the latest.
	knockTail = 1500 * time.Millisecond
)

// mover is how Services with node ports move.
type mover struct {
	name string
	// spec is a line of the file, for serviceCIDR.
	spec string
	// batch is how many Services move together: as many are connected to at once as are on their way.
	batch int
	// command prepares replumb, where it has to run.
	command func(t *testing.T, args ...string) *exec.Cmd
}

// movesOf are the steps that move a Service, by how their names begin: the rest is its namespace and name.
func movesOf() []string { return []string{"hop/", "return/"} }

// byHop moves Services one after the other, whatever the batch.
func byHop(l *lab.Lab) mover {
	return mover{name: "hop", batch: doors, command: func(t *testing.T, args ...string) *exec.Cmd {
		return command(t, "replumb", append(args, "--kubeconfig", l.Kubeconfig())...)
	}}
}

// byEtcd moves them in etcd, from a control plane.
func byEtcd(t *testing.T, l *lab.Lab) mover {
	return mover{name: "etcd", batch: 1, spec: "strategies: {nodePort: Etcd}\n    " + storedEtcd, command: onControlPlane(t, l)}
}

// TestNodePorts measures how often a node port refuses connections while its Service moves: five hundred new ones a second from another machine, at a
// node of each proxy mode. The control is the bare hop, two patches in a row, which is seen by kube-proxies as they come.
func TestNodePorts(t *testing.T) {
	l := bringUp(t, named("e2e-nodeports"))
	n := newNodePorts(t, l)
	quiet := n.thereAndBack(byHop(l), "on a quiet cluster")
	stop := n.change(time.Second)
	busy := n.thereAndBack(byHop(l), "with one change of a Service a second")
	stop()
	bare := n.bare("control: two patches in a row, on a quiet cluster")
	if bare.share() < 0.5 {
		t.Errorf(
			"control: the bare hop missed %.0f %% of moves: the clients see no loss, or nothing is gained by a nudge",
			100*bare.share(),
		)
	}
	if quiet.share() > bare.share()/4 || busy.share() > bare.share()/2 {
		t.Errorf("of moves missed: %.1f %% on a quiet cluster, %.1f %% on a busy one, %.1f %% of bare hops",
			100*quiet.share(), 100*busy.share(), 100*bare.share())
	}
	removeNamespaces(t, l, doorsNamespace)
	requireNoTrace(t, l)
}

// TestNodePortsStored moves the same Services in etcd, of which node ports may see nothing, whatever else changes. The control is the bare hop.
func TestNodePortsStored(t *testing.T) {
	l := bringUp(t, named("e2e-nodeports"))
	n := newNodePorts(t, l)
	quiet := n.thereAndBack(byEtcd(t, l), "on a quiet cluster")
	stop := n.change(time.Second)
	busy := n.thereAndBack(byEtcd(t, l), "with one change of a Service a second")
	stop()
	if failed := quiet.tally.Failed() + busy.tally.Failed(); failed > 0 {
		t.Errorf("%d connections failed", failed)
	}
	if bare := n.bare("control: two patches in a row, on a quiet cluster"); bare.tally.Failed() == 0 {
		t.Error("control: the bare hop lost nothing: the clients see no loss")
	}
	removeNamespaces(t, l, doorsNamespace)
	requireNoTrace(t, l)
}

// nodePorts are Services with node ports in front of one Deployment, and a machine outside that connects to them.
type nodePorts struct {
	*testing.T
	l     *lab.Lab
	k     *knocker
	nodes map[string]netip.Addr
	ports map[string]uint16
}

func newNodePorts(t *testing.T, l *lab.Lab) *nodePorts {
	t.Helper()
	n := &nodePorts{T: t, l: l, nodes: map[string]netip.Addr{}, ports: map[string]uint16{}}
	echo := workload.Echo{Namespace: doorsNamespace, Name: "door", PartOf: doorsNamespace, Replicas: 2}
	objects := []runtime.Object{workload.Namespace(doorsNamespace), echo.Deployment(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: doorsNamespace, Name: "elsewhere", Annotations: map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1000}}, Selector: echo.Service().Spec.Selector},
	}}
	for i := range doors {
		svc := echo.Service()
		svc.Name, svc.Labels, svc.Spec.Type = fmt.Sprintf("door-%02d", i), nil, corev1.ServiceTypeNodePort
		svc.Spec.Ports = svc.Spec.Ports[:1]
		objects = append(objects, svc)
	}
	if _, err := start(t.Context(), l, doorsNamespace, objects); err != nil {
		t.Fatal(err)
	}
	for name, svc := range allServices(t, l) {
		if short, ours := strings.CutPrefix(name, doorsNamespace+"/"); ours && svc.Spec.Type == corev1.ServiceTypeNodePort {
			n.ports[short] = uint16(svc.Spec.Ports[0].NodePort)
		}
	}
	for _, name := range l.NodeNames() {
		node, err := l.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				n.nodes[name] = netip.MustParseAddr(a.Address)
			}
		}
	}
	fabric, err := l.Machine(l.Machines()[0])
	must(t, err)
	n.k = knock(t, fabric)
	n.requireAnswers()
	return n
}

// requireAnswers waits until every node port answers at every node.
func (n *nodePorts) requireAnswers() {
	n.Helper()
	for name := range n.ports {
		eventually(n.T, settled, func() error {
			n.open(name, 10)
			defer n.close(name, 0)
			return n.rest(300*time.Millisecond, func() error {
				for node := range n.nodes {
					if got := n.k.seen(node + "/" + name); got.Failed() > 0 || got.Tried == 0 {
						return fmt.Errorf("%s at %s: %s", name, node, got)
					}
				}
				return nil
			})
		})
	}
}

// rest lets connections be made for a while, and then does something.
func (n *nodePorts) rest(d time.Duration, then func() error) error {
	select {
	case <-n.Context().Done():
		return n.Context().Err()
	case <-time.After(d):
		return then()
	}
}

func (n *nodePorts) open(service string, rate int) {
	for node, at := range n.nodes {
		n.k.open(node+"/"+service, netip.AddrPortFrom(at, n.ports[service]), rate)
	}
}

func (n *nodePorts) close(service string, after time.Duration) {
	for node := range n.nodes {
		n.k.close(node+"/"+service, after)
	}
}

// change has a Service changed that does not move, so often, until it is told to stop.
func (n *nodePorts) change(every time.Duration) (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := range 1_000_000 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			patch := fmt.Appendf(nil, `{"spec":{"ports":[{"port":%d,"protocol":"TCP"}]}}`, 1001+i%100)
			services := n.l.Client().CoreV1().Services(doorsNamespace)
			if _, err := services.Patch(
				ctx,
				"elsewhere",
				types.MergePatchType,
				patch,
				metav1.PatchOptions{},
			); err != nil &&
				ctx.Err() == nil {
				n.Errorf("changing a Service: %v", err)
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// misses are moves, and those of them in which a node port was missed at a node.
type misses struct {
	moves   int
	missed  map[string]int
	tally   knocks
	longest time.Duration
}

// share of moves that were missed, of those that a node of any mode saw.
func (m misses) share() float64 {
	all := 0
	for _, n := range m.missed {
		all += n
	}
	return float64(all) / float64(max(1, m.moves*len(m.missed)))
}

// count adds what was seen of the moves of some Services.
func (n *nodePorts) count(m *misses, services []string) {
	n.Helper()
	for _, name := range services {
		m.moves++
		for node, mode := range n.l.ProxyModes() {
			got := n.k.seen(node + "/" + name)
			if got.Tried < knockRate {
				n.Errorf("%d connections were made to %s at %s, which prove little", got.Tried, name, node)
			}
			m.missed[mode] += min(1, got.Failed())
			m.tally.Tried += got.Tried
			m.tally.Refused += got.Refused
			m.tally.Unanswered += got.Unanswered
			m.tally.Other += got.Other
			if got.Failed() > 0 {
				m.longest = max(m.longest, got.Last.Sub(got.First))
				n.Logf("%s at a node of %s: %s", name, mode, got)
			}
		}
	}
}

func (n *nodePorts) none() misses {
	m := misses{missed: map[string]int{}}
	for _, mode := range n.l.ProxyModes() {
		m.missed[mode] = 0
	}
	return m
}

func (n *nodePorts) report(what string, m misses) {
	n.Logf(
		"%s: %d moves, missed at a node %v, longest %s; %d of %d connections failed (%d refused, %d unanswered, %d otherwise)",
		what,
		m.moves,
		m.missed,
		m.longest.Round(time.Millisecond),
		m.tally.Failed(),
		m.tally.Tried,
		m.tally.Refused,
		m.tally.Unanswered,
		m.tally.Other,
	)
}

// thereAndBack moves all Services one way, and back.
func (n *nodePorts) thereAndBack(by mover, what string) misses {
	n.Helper()
	m := n.none()
	file := n.file(by)
	for _, args := range [][]string{{"apply", "-f", file}, {"rollback", "doors"}} {
		moved := n.follow(by, append(args, "--yes")...)
		if len(moved) != doors {
			n.Errorf("%s: %d Services moved by %s, want %d", args[0], len(moved), by.name, doors)
		}
		n.count(&m, moved)
	}
	n.report(by.name+", "+what, m)
	return m
}

// file has all Services move in one batch: those with node ports hop one after the other.
func (n *nodePorts) file(by mover) string {
	n.Helper()
	return writeSpec(n.T, "doors", `
  serviceCIDR:
    to: [%s]
    drain: 1s
    clusterServices: Stay
    refresh: {mode: Report}
    %s
  batch: {size: %d, settle: 0s}
`, newRange, by.spec, by.batch)
}

// follow runs a command, and has connections made to the Service that is on its way. It returns which moved.
func (n *nodePorts) follow(by mover, args ...string) (moved []string) {
	n.Helper()
	cmd := by.command(n.T, append(args, "-o", "json")...)
	_, exit, stderr := runWatching(n.T, cmd, func(e engine.Event) {
		for _, prefix := range movesOf() {
			name, is := strings.CutPrefix(e.Step, prefix+doorsNamespace+"/")
			switch {
			case !is || n.ports[name] == 0:
			case e.Kind == engine.StepStarted:
				n.open(name, knockRate)
			case e.Kind == engine.StepDone:
				n.close(name, knockTail)
				moved = append(moved, name)
			}
		}
	})
	if exit != 0 {
		n.Fatalf("replumb %s ended with %d: %s", strings.Join(args, " "), exit, stderr)
	}
	must(n, n.rest(knockTail+knockPatience, func() error { return nil }))
	return moved
}

// bare moves some Services to other addresses by the patches of a hop and nothing else.
func (n *nodePorts) bare(what string) misses {
	n.Helper()
	m := n.none()
	names := slices.Sorted(maps.Keys(n.ports))[:bareDoors]
	services := n.l.Client().CoreV1().Services(doorsNamespace)
	patch := func(name string, spec map[string]any) {
		body, err := json.Marshal(map[string]any{"spec": spec})
		if err == nil {
			_, err = services.Patch(n.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
		}
		if err != nil {
			n.Fatal(err)
		}
	}
	for _, name := range names {
		svc, err := services.Get(n.Context(), name, metav1.GetOptions{})
		must(n, err)
		n.open(name, knockRate)
		err = n.rest(2*knockTail, func() error { // no sync is due any more that would gather both patches
			patch(name, map[string]any{
				"type":                  corev1.ServiceTypeExternalName,
				"externalName":          "example.com",
				"clusterIP":             nil,
				"clusterIPs":            nil,
				"ipFamilies":            nil,
				"ipFamilyPolicy":        nil,
				"internalTrafficPolicy": nil,
				"externalTrafficPolicy": nil,
			})
			patch(name, map[string]any{
				"type": corev1.ServiceTypeNodePort, "externalName": nil, "ports": svc.Spec.Ports,
				"externalTrafficPolicy": ptr.To(svc.Spec.ExternalTrafficPolicy),
			})
			n.close(name, knockTail)
			return nil
		})
		must(n, err)
	}
	must(n, n.rest(knockTail+knockPatience, func() error { return nil }))
	n.count(&m, names)
	n.report(what, m)
	return m
}
