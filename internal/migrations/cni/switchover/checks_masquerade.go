package switchover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// checkProxy follows getLocalDetectors in k8s.io/kubernetes cmd/kube-proxy/app/server_linux.go. A
// configuration that is not visible is unknown, unless the operator has looked.
func checkProxy(in Input) []findings.Result {
	var out, unknown []findings.Result
	seen := false
	for _, p := range in.Inventory.Proxies {
		switch {
		case p.Hidden: // it reads a file, which a ConfigMap may show
		case p.Problem != "":
			unknown = append(unknown, findings.NotKnown(p.Object,
				"how kube-proxy is configured, %s does not show: %s", p.Object, p.Problem))
			seen = true
		default:
			seen = true
			wrong, open := evaluateProxy(in.Inventory, p)
			out, unknown = append(out, wrong...), append(unknown, open...)
		}
	}
	if !seen {
		unknown = append(unknown, findings.NotKnown("", "neither a ConfigMap in kube-system nor the command line of a pod shows how "+
			"kube-proxy is configured"))
	}
	if in.Inventory.Spec.Vouch.KubeProxy {
		return out
	}
	return append(out, unknown...)
}

// evaluateProxy says why kube-proxy would not take pods of the new network for pods, and what its
// configuration leaves open.
func evaluateProxy(s *Inventory, p inventory.Proxy) (wrong, open []findings.Result) {
	switch p.DetectLocalMode {
	case "", "ClusterCIDR":
		for _, to := range s.Target() {
			covered := slices.ContainsFunc(p.ClusterCIDRs, func(c netip.Prefix) bool { return Covers(c, to) })
			if !covered && len(p.ClusterCIDRs) > 0 {
				wrong = append(wrong, findings.Failed(p.Object, "clusterCIDR %v in %s does not cover %s", p.ClusterCIDRs, p.Object, to))
			}
		}
	case "NodeCIDR":
		if s.Spec.To != v1alpha1.Flannel {
			wrong = append(wrong, findings.Failed(
				p.Object,
				"kube-proxy takes for pods what has an address of the node's podCIDR (detectLocalMode NodeCIDR)",
			))
		}
	default:
		if why := interfaceUnknown(s.Spec.To, p); why != "" {
			open = append(open, findings.NotKnown(p.Object, "%s", why))
		}
	}
	return wrong, open
}

// interfaceUnknown says why kube-proxy may not know pods of a network by their interfaces, as
// networks name them by default.
func interfaceUnknown(network v1alpha1.CNIName, p inventory.Proxy) string {
	fits := false
	switch network {
	case v1alpha1.Calico: // interfaceprefix in felix/config/config_params.go
		fits = p.DetectLocalMode == "InterfaceNamePrefix" && begins(p.LocalInterface, "cali")
	case v1alpha1.Flannel: // the bridge of its delegate, and what comes in by it
		fits = p.LocalInterface == "cni0" ||
			p.DetectLocalMode == "InterfaceNamePrefix" && begins(p.LocalInterface, "cni0")
	case v1alpha1.Cilium: // Endpoint2IfName in pkg/endpoint/connector
		fits = p.DetectLocalMode == "InterfaceNamePrefix" && begins(p.LocalInterface, "lxc")
	}
	if fits {
		return ""
	}
	return fmt.Sprintf("kube-proxy knows pods by their interface (detectLocalMode %s, %q in %s), and those of %s may have another",
		p.DetectLocalMode, p.LocalInterface, p.Object, network)
}

// begins reports whether names of interfaces begin with a prefix, which is not empty.
func begins(prefix, names string) bool { return prefix != "" && strings.HasPrefix(names, prefix) }
