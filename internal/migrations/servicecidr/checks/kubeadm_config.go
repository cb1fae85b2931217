package checks

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
)

// rangeFlag is what API servers and controller managers have their Service range by.
const rangeFlag = "service-cluster-ip-range"

const (
	kubeadmConfig = "ConfigMap kube-system/" + controlplane.KubeadmConfig
	kubeletConfig = "ConfigMap kube-system/" + controlplane.KubeletConfig
)

// kubeadmConfigChecks compare what kubeadm would write with what runs, whoever passes the gates.
func kubeadmConfigChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1764", Severity: findings.Warning, Run: checkKubeadmFlags,
			Claim: "kubeadm would write the Service range that the control plane runs with",
			Why: "kubeadm upgrade, and each control plane that joins, write flags from ConfigMap kubeadm-config. In it extraArgs win over networking. Another " +
				"range there, beside manifests that were edited or kubeadm's --patches, comes back then, in the midst of the migration or after it",
			Fix: "before apply, bring kubectl -n kube-system edit configmap kubeadm-config and the manifests together. At the gate of API servers change what " +
				"counts, networking.serviceSubnet or extraArgs, and files in a folder of patches on control planes, of which nothing in the cluster tells",
		},
		{
			Code: "RP1765", Severity: findings.Warning, Run: checkAlike,
			Claim: "all control planes run with the same Service range",
			Why: "which range the cluster has by default depends on which API server starts first; the gate of API servers goes by all of them, and gates: Kubeadm " +
				"changes only the value that it expects",
			Fix: "give --service-cluster-ip-range the same value in the manifests of kube-apiserver and kube-controller-manager on all control planes",
		},
		{
			Code: "RP1766", Severity: findings.Warning, Run: checkKubeletConfig,
			Claim: "kubeadm configures kubelets with the cluster DNS that they name",
			Why: "nodes that join, and kubeadm upgrade node, take clusterDNS from ConfigMap kubelet-config. Where a kubelet names another address, something wins " +
				"over it or was edited: --cluster-dns in /var/lib/kubelet/kubeadm-flags.env or KUBELET_EXTRA_ARGS, a drop-in of --config-dir, or kubeadm's --patches",
			Fix: "find on the node where the address comes from, and change it there as well at the gate of kubelets; or bring both together before apply " +
				"(kubectl -n kube-system edit configmap kubelet-config, then kubeadm upgrade node phase kubelet-config and a restart of the kubelet)",
		},
		{
			Code: "RP1767", Severity: findings.Warning, Run: checkAuthority,
			Claim: "control planes have the key of the authority that signs for API servers",
			Why: "kubeadm init phase certs signs the certificate for the new address of kubernetes with it, and so does replumb with gates: Kubeadm, which looks for it on " +
				"each node before the first Service moves. kubeadm leaves --cluster-signing-key-file empty where the key is kept elsewhere",
			Fix: "at the gate of certificates, have who keeps the key sign a request of kubeadm certs generate-csr that names both addresses, and write it to " +
				"/etc/kubernetes/pki/apiserver.crt; with gates: Kubeadm, name certificates in spec.serviceCIDR.manualGates",
		},
	}
}

// movingRanges are those that flags have before or after.
func (in Input) movingRanges() []netip.Prefix {
	was, becomes, _ := ranges.DefaultRanges(in.Inventory)
	return slices.Concat(was, becomes, in.spec().From, in.spec().To)
}

func checkKubeadmFlags(in Input) []findings.Result {
	seen := in.Found().ControlPlane
	out := in.unread("configmaps", "pods")
	if seen.Configuration == "" && len(out) == 0 {
		return findings.Skip("no configuration of kubeadm was seen")
	}
	if seen.Configuration == "" {
		return out
	}
	c, err := kubeadm.ReadConfiguration(seen.Configuration)
	if err != nil {
		return append(out, findings.NotKnown(kubeadmConfig, "%v", err))
	}
	for i := range seen.Programs {
		p := &seen.Programs[i]
		runs, given := p.Flag(rangeFlag)
		would, field := c.Flag(string(p.Component), rangeFlag)
		if given && would != "" && !kubeadm.SameRanges(runs, would, in.movingRanges()) {
			out = append(out, findings.Failed("Node "+p.Node, "%s on node %s runs with --%s=%s, and by %s in %s kubeadm would write %s",
				p.Component, p.Node, rangeFlag, runs, field, kubeadmConfig, would))
		}
	}
	return append(out, in.extraArgs(c)...)
}

// extraArgs are findings where people set networking at the gate, and something else counts.
func (in Input) extraArgs(c *kubeadm.Configuration) (out []findings.Result) {
	origin := inventory.OriginOf(in.Snapshot.Nodes, in.Found().Kubeadm)
	if in.Kubeadm != nil || origin.ClusterAPI || !slices.Contains(controlPlaneGates(in.Inventory), gateAPIServers) {
		return nil
	}
	for _, program := range []controlplane.Component{controlplane.APIServer, controlplane.ControllerManager} {
		if _, field := c.Flag(string(program), rangeFlag); strings.HasSuffix(field, "extraArgs") {
			out = append(out, findings.Failed(kubeadmConfig, "%s sets %s in %s, which wins over networking.serviceSubnet", kubeadmConfig, rangeFlag, field))
		}
	}
	return out
}

func checkAlike(in Input) []findings.Result {
	out := in.unread("pods")
	for _, component := range []controlplane.Component{controlplane.APIServer, controlplane.ControllerManager} {
		first := ""
		for i := range in.Found().ControlPlane.Programs {
			p := &in.Found().ControlPlane.Programs[i]
			value, given := p.Flag(rangeFlag)
			if p.Component != component || !given {
				continue
			}
			if first == "" {
				first = value
			}
			if !kubeadm.SameRanges(value, first, in.movingRanges()) {
				out = append(out, findings.Failed("Node "+p.Node, "%s on node %s runs with --%s=%s, and elsewhere with %s", component, p.Node, rangeFlag, value, first))
			}
		}
	}
	return out
}

func checkKubeletConfig(in Input) []findings.Result {
	text, unread := in.Found().ControlPlane.Kubelets, in.unread("configmaps")
	switch {
	case len(unread) > 0:
		return unread
	case text == "":
		return findings.Skip("kubeadm has no configuration of kubelets")
	case !in.toldByKubelets():
		return findings.Skip("no kubelet told its cluster DNS (RP1007)")
	}
	given, err := kubeadm.ClusterDNS(kubeletConfig, []byte(text))
	if err != nil {
		return []findings.Result{findings.NotKnown(kubeletConfig, "%v", err)}
	}
	nodes := map[string][]string{}
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		if k := in.Snapshot.Kubelets[node]; k.Err == nil && !slices.Equal(in.dnsAfter(k.DNS), in.dnsAfter(given)) {
			named := strings.Join(k.DNS, ", ")
			nodes[named] = append(nodes[named], node)
		}
	}
	var out []findings.Result
	for _, named := range sortedKeys(nodes) {
		out = append(out, findings.Failed(kubeletConfig, "kubelets name %s as cluster DNS on %s, and %s has %s",
			orNothing(named), lists.FirstN(nodes[named], 5), kubeletConfig, orNothing(strings.Join(given, ", "))))
	}
	return out
}

// dnsAfter has new addresses in the place of old ones: at the gate both are found.
func (in Input) dnsAfter(named []string) []string {
	all := slices.Clone(named)
	for _, e := range in.Inventory.DNSMoves() {
		for i, text := range all {
			if text == e.Old.String() {
				all[i] = e.New.String()
			}
		}
	}
	return all
}

func orNothing(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func checkAuthority(in Input) []findings.Result {
	if !in.Found().Kubeadm || in.Inventory.Kubernetes() == nil {
		return findings.Skip("kubeadm signs no certificate")
	}
	out := in.unread("pods")
	for i := range in.Found().ControlPlane.Programs {
		p := &in.Found().ControlPlane.Programs[i]
		if key, given := p.Flag("cluster-signing-key-file"); given && key == "" {
			out = append(out, findings.Failed("Node "+p.Node, "%s on node %s runs with an empty --cluster-signing-key-file", p.Component, p.Node))
		}
	}
	return out
}

// checkReached is about addresses that no Node has, so that RP1103 does not see them.
func checkReached(in Input) []findings.Result {
	out := in.unread("configmaps", "pods")
	control := in.Found().ControlPlane
	for _, r := range control.Reached() {
		for _, to := range in.spec().To {
			if to.Contains(r.Address) {
				out = append(out, findings.Failed(r.Object, "target %s contains %s, the address of %s", to, r.Address, r.What))
			}
		}
		for _, e := range in.Inventory.Moves {
			if e.Old == r.Address {
				out = append(out, findings.Failed(r.Object, "%s, the address of %s, is that of service %s, which moves", r.Address, r.What, e.Key()))
			}
		}
	}
	return out
}
