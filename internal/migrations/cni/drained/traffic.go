package drained

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
)

// TrafficError says that a cluster that was to serve no one does.
type TrafficError struct {
	Node    string
	Clients string
}

func (e *TrafficError) Error() string {
	return fmt.Sprintf("node %s serves clients from outside: %s", e.Node, e.Clients)
}

func (*TrafficError) ExitCode() int { return fault.ExitBlocked }

func (*TrafficError) Advice() string {
	return "lead them to another cluster first; name in spec.cni.traffic.ignore who is no client, or run apply --accept-downtime"
}

func (p *planner) quiet() []engine.Group {
	if p.Inventory.Begun() || !p.Spec().Quiet {
		return nil
	}
	args := []string{
		"--window=" + p.Spec().Window.String(), "--inside=" + strings.Join(inside(p.Inventory), ","),
		"--ignore=" + switchover.JoinRanges(p.Spec().Ignore),
		"--served=" + switchover.JoinRanges(slices.Concat(p.Inventory.Ranges, p.Inventory.Services)),
	}
	if ports := hostPorts(p.Inventory); len(ports) > 0 {
		args = append(args, "--ports="+strings.Join(ports, ","))
	}
	var steps []engine.Step
	for _, node := range p.Inventory.NodeNames() {
		s := p.OnNode(nodepod.VerbTraffic, node, "quiet", "Verify that node "+node+" serves no one from outside", args...)
		s.Limit += p.Spec().Window
		s.Evaluate = func(r *nodecleanup.TracesReport) error {
			if len(r.Clients) == 0 && r.More == 0 {
				return nil
			}
			return &TrafficError{Node: node, Clients: r.String()}
		}
		steps = append(steps, nodepod.ReadOnly{Step: s})
	}
	return []engine.Group{{Title: "Traffic", Parallel: max(1, len(steps)), Steps: steps}}
}

func inside(s *switchover.Inventory) []string {
	var out []string
	for i := range s.Nodes {
		for _, a := range s.Nodes[i].Status.Addresses {
			if _, err := netip.ParseAddr(a.Address); err == nil && !slices.Contains(out, a.Address) {
				out = append(out, a.Address)
			}
		}
	}
	for _, r := range slices.Concat(s.Ranges, s.Services) {
		out = append(out, r.String())
	}
	return out
}

// hostPorts are ports that pods on the network of their node, but the cluster's own, answer on.
func hostPorts(s *switchover.Inventory) []string {
	var out []string
	for i := range s.Pods {
		p := &s.Pods[i]
		if !p.Spec.HostNetwork || p.Namespace == metav1.NamespaceSystem || p.Namespace == v1alpha1.SystemNamespace {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if text := strconv.Itoa(int(port.ContainerPort)); !slices.Contains(out, text) {
					out = append(out, text)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
