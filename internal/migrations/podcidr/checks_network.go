package podcidr

import (
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine/findings"
)

func checkProxyRange(in Input) []findings.Result {
	var out []findings.Result
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "nobody looked")}
	}
	for _, p := range in.Live.Inspection.Proxies {
		switch {
		case p.Hidden || p.Problem != "":
			out = append(out, findings.NotKnown(p.Object, "how kube-proxy is configured, %s does not tell", p.Object))
		case p.DetectLocalMode == "NodeCIDR" && in.Survey.OnNodes(): // it restarts by itself when its Node has another range
		case p.DetectLocalMode == "NodeCIDR":
			out = append(
				out,
				findings.Failed(p.Object, "kube-proxy takes for pods what has an address of the node's podCIDR (detectLocalMode NodeCIDR)"),
			)
		case p.DetectLocalMode == "" || p.DetectLocalMode == "ClusterCIDR":
			for _, to := range in.Survey.Spec.To {
				covered := slices.ContainsFunc(
					p.ClusterCIDRs,
					func(c netip.Prefix) bool { return c.Bits() <= to.Bits() && c.Contains(to.Addr()) },
				)
				if !covered && len(p.ClusterCIDRs) > 0 {
					out = append(out, findings.Failed(p.Object, "clusterCIDR %v in %s does not cover target %s", p.ClusterCIDRs, p.Object, to))
				}
			}
		}
	}
	return out
}

// checkMasquerade reads the configuration of ip-masq-agent (github.com/kubernetes-sigs/ip-masq-agent), by whatever name.
// Without one the agent takes all private addresses for pods.
func checkMasquerade(in Input) []findings.Result {
	var out []findings.Result
	for _, name := range slices.Sorted(maps.Keys(in.Survey.Configs)) {
		if !strings.Contains(name, "masq") {
			continue
		}
		for _, text := range in.Survey.Configs[name] {
			var config struct {
				NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
			}
			if err := yaml.Unmarshal([]byte(text), &config); err != nil {
				out = append(out, findings.NotKnown("ConfigMap "+name, "ConfigMap %s cannot be read: %v", name, err))
				continue
			}
			for _, to := range in.Survey.Spec.To {
				if len(config.NonMasqueradeCIDRs) > 0 &&
					!slices.ContainsFunc(config.NonMasqueradeCIDRs, func(c string) bool { return covers(c, to) }) {
					out = append(
						out,
						findings.Failed("ConfigMap "+name, "nonMasqueradeCIDRs in ConfigMap %s do not cover target %s", name, to),
					)
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
	for i := range in.Survey.Nodes {
		if _, kops := in.Survey.Nodes[i].Labels["kops.k8s.io/instancegroup"]; kops {
			return []findings.Result{findings.NotKnown("", "kOps made the cluster, and does not tell it its nonMasqueradeCIDR")}
		}
	}
	return nil
}

// checkControllerManager reads the command lines of controller managers that run as static pods.
func checkControllerManager(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Workloads.Pods {
		pod := &in.Survey.Workloads.Pods[i]
		for n := range pod.Spec.Containers {
			words := slices.Concat(pod.Spec.Containers[n].Command, pod.Spec.Containers[n].Args)
			if !slices.ContainsFunc(words, func(w string) bool { return path.Base(w) == "kube-controller-manager" }) ||
				!slices.ContainsFunc(
					words,
					func(w string) bool { return w == "--allocate-node-cidrs" || w == "--allocate-node-cidrs=true" },
				) {
				continue
			}
			for _, text := range clusterCIDRs(words) {
				p, err := netip.ParsePrefix(text)
				about := err == nil && slices.ContainsFunc(slices.Concat(in.Survey.Spec.From, in.Survey.Spec.To), p.Overlaps)
				if about {
					out = append(out, findings.Failed("Pod "+pod.Namespace+"/"+pod.Name,
						"pod %s/%s gives nodes ranges of %s (--allocate-node-cidrs, --cluster-cidr)", pod.Namespace, pod.Name, p))
				}
			}
		}
	}
	return out
}

func clusterCIDRs(words []string) []string {
	for i, w := range words {
		if value, ok := strings.CutPrefix(w, "--cluster-cidr="); ok {
			return strings.Split(value, ",")
		}
		if w == "--cluster-cidr" && i+1 < len(words) {
			return strings.Split(words[i+1], ",")
		}
	}
	return nil
}

// checkTunnels knows what Calico does to packets when it changes the address of a tunnel (felix/dataplane/linux/vxlan_mgr.go):
// neighbours and routes towards the old one go before those towards the new one come, and with the address the kernel
// forgets what was masqueraded with it (masq_inet_event in net/netfilter/nf_nat_masquerade.c).
func checkTunnels(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Moves {
		old := in.Survey.Moves[i].Old
		if old == nil || old.Overlay() == "" {
			continue
		}
		if nodes := in.Survey.TunnelsIn([]netip.Prefix{old.CIDR}); len(nodes) > 1 {
			out = append(
				out,
				findings.Failed("IPPool "+old.Name, "%s tunnels of %d nodes have addresses of %s", old.Overlay(), len(nodes), old.CIDR),
			)
		}
	}
	return out
}
