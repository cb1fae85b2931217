package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// stragglers are clients that hold on to addresses whatever becomes of the Services, one of each kind.
type stragglers struct {
	*testing.T
	l    *lab.Lab
	want []straggler
	pods []string
	conn net.Conn
}

// straggler is one as status lists it. Who is no pod with an address of its own has none.
type straggler struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Pod      string `json:"pod"`
	Node     string `json:"node"`
	Source   string `json:"source"`
}

// straggle starts a pod with a connection that it keeps, a pod that sends datagrams, a pod with hostNetwork, and a process of a node.
func straggle(t *testing.T, l *lab.Lab, callees []traffic.Callee) *stragglers {
	t.Helper()
	s := &stragglers{T: t, l: l}
	s.pod("lingers-tcp", "node1", probe.Stream, s.to(callees, "front", workload.TCPPort), false)
	s.pod("lingers-udp", "node2", probe.UDP, s.to(callees, "cart", workload.UDPPort), false)
	s.pod("lingers-host", "node2", probe.Stream, s.to(callees, "catalog", workload.TCPPort), true)
	m, err := l.Machine("node1")
	must(t, err)
	address := s.to(callees, "payments", workload.TCPPort)
	if s.conn, err = m.Dial(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	}
	s.want = append(s.want, straggler{Address: address, Protocol: "TCP", Node: "node1", Source: s.addressOf("node1")})
	t.Cleanup(s.stop)
	return s
}

func (s *stragglers) to(callees []traffic.Callee, name string, port int) string {
	s.Helper()
	i := slices.IndexFunc(callees, func(c traffic.Callee) bool { return c.Name == name })
	if i < 0 {
		s.Fatalf("the shop has no %s", name)
	}
	return net.JoinHostPort(callees[i].Address, strconv.Itoa(port))
}

func (s *stragglers) addressOf(node string) string {
	s.Helper()
	n, err := s.l.Client().CoreV1().Nodes().Get(s.Context(), node, metav1.GetOptions{})
	must(s, err)
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	s.Fatalf("node %s has no address", node)
	return ""
}

func (s *stragglers) pod(name, node string, kind probe.TargetKind, address string, onHost bool) {
	s.Helper()
	pod, err := workload.Client(shopNamespace, name, node, probe.Config{Targets: []probe.Target{
		{Name: name, Kind: kind, Address: address, Rate: 2},
	}})
	must(s, err)
	want := straggler{Address: address, Protocol: "TCP", Pod: shopNamespace + "/" + name, Node: node}
	if kind == probe.UDP {
		want.Protocol = "UDP"
	}
	if onHost {
		pod.Spec.HostNetwork, pod.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		pod.Spec.SecurityContext = nil // the setting would be the node's
		want.Pod, want.Source = "", s.addressOf(node)
	}
	s.pods = append(s.pods, name)
	must(s, workload.Ensure(s.Context(), s.l.Client(), pod))
	must(s, workload.WaitReady(s.Context(), s.l.Client(), settled, pod))
	s.want = append(s.want, want)
}

// stop ends all of them. It may be called twice.
func (s *stragglers) stop() {
	s.Helper()
	_ = s.conn.Close()
	for _, name := range s.pods {
		// Not the test's context: it is over when this is the last thing to be done.
		err := s.l.Client().CoreV1().Pods(shopNamespace).Delete(context.WithoutCancel(s.Context()), name,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil {
			s.Error(err)
		}
	}
	s.pods = nil
}

// requireListed fails the test unless status lists each of them with its pod, or its node's address, and no other as having
// connections open. Agents probe old addresses all the time: they do not count.
func (s *stragglers) requireListed(migration string) {
	s.Helper()
	eventually(s.T, settled, func() error {
		var page struct {
			Clients []struct {
				straggler
				Open int `json:"open"`
			} `json:"clients"`
		}
		must(s, json.Unmarshal([]byte(replumb(s.T, s.l, "status", migration, "-o", "json")), &page))
		missing := slices.Clone(s.want)
		var others []string
		for _, c := range page.Clients {
			i := slices.IndexFunc(missing, func(w straggler) bool {
				got := c.straggler
				if w.Pod != "" {
					got.Source = "" // of a pod any address will do
				}
				return w == got
			})
			switch {
			case i >= 0 && c.Open > 0:
				missing = slices.Delete(missing, i, i+1)
			case c.Open > 0:
				others = append(others, fmt.Sprintf("%+v", c))
			}
		}
		if len(missing) > 0 || len(others) > 0 {
			return fmt.Errorf("not listed: %+v; listed beside: %s; all: %+v", missing, strings.Join(others, "; "), page.Clients)
		}
		return nil
	})
	s.Logf("status lists %+v", s.want)
}
