package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// gateRate is how many new connections a second are made at the gate, at each node.
const gateRate = 20

// gate is a node port of the shop, at which another machine makes connections, at every node.
type gate struct {
	k     *knocker
	rate  int // new connections a second at each node
	doors map[string]netip.AddrPort
}

// openGate gives the shop's front a node port, and returns when it answers at every node at a share of gateRate.
func openGate(t *testing.T, l *lab.Lab, share float64) *gate {
	t.Helper()
	front := workload.Shop(shopNamespace)[0].Service()
	svc, err := l.Client().CoreV1().Services(shopNamespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "gate"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: front.Spec.Selector, Ports: front.Spec.Ports[:1]},
	}, metav1.CreateOptions{})
	must(t, err)
	fabric, err := l.Machine(l.Machines()[0])
	must(t, err)
	g := &gate{k: knock(t, fabric), rate: max(1, int(gateRate*share)), doors: map[string]netip.AddrPort{}}
	nodes, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				g.doors[nodes.Items[i].Name] = netip.AddrPortFrom(netip.MustParseAddr(a.Address), uint16(svc.Spec.Ports[0].NodePort))
			}
		}
	}
	g.await(t)
	return g
}

// open has connections made from now on. What was counted before is forgotten.
func (g *gate) open() {
	for node, at := range g.doors {
		g.k.open(node, at, g.rate)
	}
}

// seen is what became of the connections at each node.
func (g *gate) seen() map[string]knocks {
	all := map[string]knocks{}
	for node := range g.doors {
		all[node] = g.k.seen(node)
	}
	return all
}

// await returns when every node lets a second's connections in.
func (g *gate) await(t *testing.T) {
	t.Helper()
	g.open()
	eventually(t, settled, func() error {
		for node, knocks := range g.seen() {
			switch {
			case knocks.Failed() > 0:
				g.open()
				return fmt.Errorf("the node port at %s: %s", node, knocks)
			case knocks.Tried < g.rate:
				return fmt.Errorf("%d connections were made to the node port at %s", knocks.Tried, node)
			}
		}
		return nil
	})
}
