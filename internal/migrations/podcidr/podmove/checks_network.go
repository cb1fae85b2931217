package podmove

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// checkProxyRange follows getLocalDetectors in k8s.io/kubernetes
// cmd/kube-proxy/app/server_linux.go.
func checkProxyRange(in Input) []findings.Result {
	var out []findings.Result
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "the cluster was not looked through")}
	}
	all := in.Live.Inspection.Proxies
	if len(all) == 0 {
		return findings.Skip("no configuration of kube-proxy was seen")
	}
	shown := slices.ContainsFunc(all, func(p inventory.Proxy) bool { return !p.Hidden })
	for _, p := range all {
		switch {
		case p.Hidden && shown: // it reads a file, which is in a ConfigMap
		case p.Hidden || p.Problem != "":
			out = append(out, findings.NotKnown(p.Object, "how kube-proxy is configured, %s does not tell", p.Object))
		case p.DetectLocalMode == "NodeCIDR" && in.ByNode: // it restarts by itself when its Node has another range
		case p.DetectLocalMode == "NodeCIDR":
			out = append(out,
				findings.Failed(p.Object, "kube-proxy takes for pods what has an address of the node's podCIDR (detectLocalMode NodeCIDR)"))
		case p.DetectLocalMode == "" || p.DetectLocalMode == "ClusterCIDR":
			out = append(out, in.uncovered(p)...)
		}
	}
	return out
}

// uncovered are the targets outside of the range by which kube-proxy knows pods, if it has one.
func (in Input) uncovered(p inventory.Proxy) (out []findings.Result) {
	for _, to := range in.Inventory.Spec.To {
		covered := slices.ContainsFunc(p.ClusterCIDRs,
			func(c netip.Prefix) bool { return c.Bits() <= to.Bits() && c.Contains(to.Addr()) })
		if !covered && len(p.ClusterCIDRs) > 0 {
			out = append(out, findings.Failed(p.Object, "clusterCIDR %v in %s does not cover target %s", p.ClusterCIDRs, p.Object, to))
		}
	}
	return out
}

// checkKubeadmRange compares what kubeadm would write with what runs, whoever passes the gates.
func checkKubeadmRange(in Input) (out []findings.Result) {
	const flag, config = "cluster-cidr", "ConfigMap kube-system/" + controlplane.KubeadmConfig
	if in.Live.Inspection == nil || in.Live.Inspection.ControlPlane.Configuration == "" {
		return findings.Skip("no configuration of kubeadm was seen")
	}
	seen := in.Live.Inspection.ControlPlane
	c, err := kubeadm.ReadConfiguration(seen.Configuration)
	if err != nil {
		return []findings.Result{findings.NotKnown(config, "%v", err)}
	}
	moving := slices.Concat(in.Inventory.Spec.From, in.Inventory.Spec.To)
	for i := range seen.Programs {
		p := &seen.Programs[i]
		runs, given := p.Flag(flag)
		would, field := c.Flag(string(p.Component), flag)
		if given && would != "" && !kubeadm.SameRanges(runs, would, moving) {
			out = append(out, findings.Failed("Node "+p.Node, "%s on node %s runs with --%s=%s, and by %s in %s kubeadm would write %s",
				p.Component, p.Node, flag, runs, field, config, would))
		}
	}
	return out
}

// checkMasquerade reads ip-masq-agent's configuration (github.com/kubernetes-sigs/ip-masq-agent).
// The default takes all private addresses for pods.
func checkMasquerade(in Input) []findings.Result {
	var out []findings.Result
	agents := slices.DeleteFunc(slices.Sorted(maps.Keys(in.Inventory.Configs)), func(name string) bool { return !strings.Contains(name, "masq") })
	if len(agents) == 0 {
		return findings.Skip("no masquerade agent has a ConfigMap")
	}
	for _, name := range agents {
		for _, text := range in.Inventory.Configs[name] {
			var config struct {
				NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
			}
			if err := yaml.Unmarshal([]byte(text), &config); err != nil {
				out = append(out, findings.NotKnown("ConfigMap "+name, "ConfigMap %s cannot be read: %v", name, err))
				continue
			}
			for _, to := range in.Inventory.Spec.To {
				if len(config.NonMasqueradeCIDRs) > 0 &&
					!slices.ContainsFunc(config.NonMasqueradeCIDRs, func(c string) bool { return covers(c, to) }) {
					out = append(out,
						findings.Failed("ConfigMap "+name, "nonMasqueradeCIDRs in ConfigMap %s do not cover target %s", name, to))
				}
			}
		}
	}
	return out
}

// covers reports whether a range, as text, contains another.
func covers(text string, to netip.Prefix) bool {
	c, err := netip.ParsePrefix(text)
	return err == nil && c.Bits() <= to.Bits() && c.Contains(to.Addr())
}

// checkKOps knows a cluster of kOps by the labels of its nodes.
func checkKOps(in Input) []findings.Result {
	for i := range in.Inventory.Nodes {
		if _, kops := in.Inventory.Nodes[i].Labels["kops.k8s.io/instancegroup"]; kops {
			return []findings.Result{findings.NotKnown("", "kOps made the cluster, and does not tell it its nonMasqueradeCIDR")}
		}
	}
	return findings.Skip("kOps did not make the cluster")
}
