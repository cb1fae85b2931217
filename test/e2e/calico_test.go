package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/labtest"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// TestCalicoLab sees that a lab with Calico is one: pods of both nodes, one of each proxy mode, reach each other and
// Services; tunnels have addresses of the pool and are used when they should be; NetworkPolicies hold, and it is they that
// deny; and Felix may be killed meanwhile.
func TestCalicoLab(t *testing.T) {
	before := labtest.HostState(t)
	for _, tt := range []struct {
		name     string
		cni      lab.CNI
		tunneled bool
	}{
		{"e2e-calico-cross", lab.CalicoCrossSubnet, false},
		{"e2e-calico", lab.Calico, true},
	} {
		t.Run(string(tt.cni), func(t *testing.T) {
			topology := named(tt.name)
			topology.CNI = tt.cni
			l := bringUp(t, topology)
			requireTunnelsIn(t, l, l.Topology.PodCIDR)
			s := guarded(t, l, "guarded")

			already := tunneled(t, l)
			lived := s.during(t, "Felix being killed", func() {
				for _, node := range l.NodeNames() {
					killed(t, l, node, "calico-felix")
				}
			})
			lived.requireNothingLost(t, traffic.Permitted)
			lived.requireDenied(t)
			if packets := tunneled(t, l) - already; tt.tunneled != (packets > 0) {
				t.Errorf("%d packets went through tunnels", packets)
			}
			requireVerdictsAreThePolicies(t, l, s, "guarded")
		})
	}
	labtest.RequireNothingLeft(t, "e2e-calico-cross")
	labtest.RequireUnchanged(t, before)
}

// guarded starts two Services, and clients of them on every node: members, who may call both, and guests, who may call
// one. One has a single pod, so that some client always has to leave its node.
func guarded(t *testing.T, l *lab.Lab, namespace string) *shop {
	t.Helper()
	front := workload.Echo{Namespace: namespace, Name: workload.GuestsMay, PartOf: workload.PartOfVariety, Replicas: 2}
	cart := workload.Echo{Namespace: namespace, Name: "cart", PartOf: workload.PartOfVariety, Replicas: 1}
	objects := append([]runtime.Object{workload.Namespace(namespace)}, front.Objects()...)
	callees, err := start(t.Context(), l, namespace, append(append(objects, cart.Objects()...), workload.Policies(namespace)...))
	must(t, err)
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(), callsOf(namespace, callees, policyRates())...)
	must(t, err)
	t.Cleanup(watch.Stop)
	s := &shop{watch: watch, prompt: traffic.OfPods()}
	s.awaitVerdicts(t)
	return s
}

func policyRates() traffic.Rates {
	return traffic.Rates{Request: 12, Stream: 6, LookUp: 4, Forbidden: 2}
}

// callsOf are those of a member, who may call everything, and those of a guest, who tries.
func callsOf(namespace string, callees []traffic.Callee, rates traffic.Rates) []traffic.Calls {
	var open, shut []traffic.Callee
	for _, c := range callees {
		if c.Name == workload.GuestsMay {
			open = append(open, c)
		} else {
			shut = append(shut, c)
		}
	}
	member := traffic.Call(namespace, callees, rates).AndKeep(callees, rates).As(workload.Member(), nil)
	guest := traffic.Call(namespace, open, rates).AndTry(shut, rates).As(workload.Guest(), nil)
	member.Client, guest.Client = "member", "guest"
	return []traffic.Calls{member, guest}
}

// awaitVerdicts waits until everything that is allowed is answered, and everything that is not is denied.
func (s *shop) awaitVerdicts(t *testing.T) {
	t.Helper()
	must(t, s.watch.Await(t.Context(), settled, "a second without failures", traffic.Permitted, traffic.Steady))
	must(t, s.watch.Await(t.Context(), settled, "a second without answers", traffic.Forbidden, traffic.Denied))
}

// requireDenied fails the test for every second in which anything came back over a forbidden way, and when there were no tries.
func (sp span) requireDenied(t *testing.T) {
	t.Helper()
	for from, series := range sp.heard {
		if !traffic.Forbidden(from) {
			continue
		}
		for _, w := range series.Between(sp.from, sp.to) {
			if denied := w.Errors[probe.ConnectTimeout]; denied != w.Sent {
				t.Errorf("%s: %s: %d of %d requests were answered at %s, others failed with %s", sp.what, from, w.OK, w.Sent,
					w.StartTime().Format(time.TimeOnly), probe.FormatErrors(w.Errors))
			}
		}
	}
	total := sp.stats(t, traffic.Forbidden)
	if total.Sent == 0 {
		t.Errorf("%s: there were no tries of what is forbidden", sp.what)
	}
	t.Logf("%s, %s: %d requests, %d answered", sp.what, traffic.ByForbidden, total.Sent, total.OK)
}

// requireVerdictsAreThePolicies is the control for what is denied: without the policies it must be answered, on every
// node. With them back, it is denied again.
func requireVerdictsAreThePolicies(t *testing.T, l *lab.Lab, s *shop, namespace string) {
	t.Helper()
	policies := l.Client().NetworkingV1().NetworkPolicies(namespace)
	must(t, policies.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, s.watch.Await(t.Context(), settled, "answers without policies", traffic.All, traffic.Steady))
	must(t, workload.Ensure(t.Context(), l.Client(), workload.Policies(namespace)...))
	s.awaitVerdicts(t)
}

// requireTunnelsIn fails the test unless every node's tunnel has an address in the range.
func requireTunnelsIn(t *testing.T, l *lab.Lab, cidr netip.Prefix) {
	t.Helper()
	eventually(t, settled, func() error {
		nodes, err := l.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range nodes.Items {
			tunnels := calico.TunnelAddresses(&nodes.Items[i])
			if len(tunnels) == 0 {
				return fmt.Errorf("%s has no tunnel", nodes.Items[i].Name)
			}
			for _, a := range tunnels {
				if !cidr.Contains(a) {
					return fmt.Errorf("the tunnel of %s has address %s, not one of %s", nodes.Items[i].Name, a, cidr)
				}
			}
		}
		return nil
	})
}

// tunneled is how many packets have come through the tunnels of all nodes.
func tunneled(t *testing.T, l *lab.Lab) (packets int) {
	t.Helper()
	for _, node := range l.NodeNames() {
		out, err := l.Exec(t.Context(), node, "ip", "-json", "-statistics", "link", "show", "vxlan.calico")
		must(t, err)
		var links []struct {
			Stats struct{ RX struct{ Packets int } } `json:"stats64"`
		}
		if err := json.Unmarshal(out, &links); err != nil || len(links) != 1 {
			t.Fatalf("%v in %s", err, out)
		}
		packets += links[0].Stats.RX.Packets
	}
	return packets
}

// killed ends a program on a machine with SIGKILL, and returns when it runs again.
func killed(t *testing.T, l *lab.Lab, machine, program string) {
	t.Helper()
	before := pidOf(t, l, machine, program)
	kill(t, l, machine, program)
	eventually(t, settled, func() error {
		if now := pidOf(t, l, machine, program); now == 0 || now == before {
			return errors.New(program + " does not run again on " + machine)
		}
		return nil
	})
}

// pidOf is the process of a program on a machine; zero, while it does not run.
func pidOf(t *testing.T, l *lab.Lab, machine, program string) int {
	t.Helper()
	m, err := l.Machine(machine)
	must(t, err)
	info, err := m.Info(t.Context())
	must(t, err)
	for _, p := range info.Programs {
		if p.Name == program {
			return p.PID
		}
	}
	return 0
}
