package cni

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
	"github.com/replumb/replumb/internal/network/nodecleanup"
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

// quiet looks for clients on every node at the same time.
func (p *drainedPlanner) quiet() []engine.Group {
	if p.Inventory.begun() || !p.spec().Quiet {
		return nil
	}
	args := []string{
		"--window=" + p.spec().Window.String(), "--inside=" + strings.Join(inside(p.Inventory), ","),
		"--ignore=" + joinRanges(p.spec().Ignore),
		"--served=" + joinRanges(slices.Concat(p.Inventory.Ranges, p.Inventory.Services)),
	}
	if ports := hostPorts(p.Inventory); len(ports) > 0 {
		args = append(args, "--ports="+strings.Join(ports, ","))
	}
	var steps []engine.Step
	for _, node := range p.Inventory.NodeNames() {
		s := p.onNode(verbTraffic, node, "quiet", "Verify that node "+node+" serves no one from outside", args...)
		s.limit += p.spec().Window
		s.evaluate = func(r *nodecleanup.Report) error {
			if len(r.Clients) == 0 && r.More == 0 {
				return nil
			}
			return &TrafficError{Node: node, Clients: r.String()}
		}
		steps = append(steps, lookStep{s})
	}
	return []engine.Group{{Title: "Traffic", Parallel: max(1, len(steps)), Steps: steps}}
}

// inside are the addresses of nodes, and the ranges of pods and Services.
func inside(s *Inventory) []string {
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
func hostPorts(s *Inventory) []string {
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
