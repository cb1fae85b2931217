package noderanges

import (
	"fmt"
	"net/netip"

	"github.com/replumb/replumb/internal/kube/inventory"
)

// kOpsOverwrites is for gates that kOps has nothing for; RP2507 stops before. BuildOptions in
// pkg/model/components/kubecontrollermanager.go in k8s.io/kops sets AllocateNodeCIDRs always.
const kOpsOverwrites = `kOps sets --allocate-node-cidrs by itself, whatever kubeControllerManager.allocateNodeCIDRs of the cluster's spec says.
Go back: replumb rollback. A flag that is changed on a machine lasts until kOps replaces that.`

// usualBits is the size of ranges that controller managers give IPv4 Nodes without a flag.
const usualBits = 24

// copiedIn is how a manifest changes without another one beside it.
const copiedIn = `Copy it into that folder, and keep the former one elsewhere: the kubelet runs every file in there, temporary ones of sed -i too.`

const onward = "\nreplumb makes a Node of its own to see what they do, and goes on by itself."

func pausedGuide(o inventory.Origin) string {
	const reason = `a controller manager that gives nodes ranges does not start while any Node has one outside of its --cluster-cidr.
Nodes that join meanwhile get theirs from replumb.
`
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return reason + `in the management cluster, set in clusterConfiguration of the KubeadmControlPlane (in v1beta1 extraArgs is a map):
  controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "false"}]}
It replaces the machines of the control plane, one after the other. Pause it until the next gate: annotation cluster.x-k8s.io/paused.` + onward
		}
		return reason + `on every control-plane node, set in a copy of /etc/kubernetes/manifests/kube-controller-manager.yaml:
  --allocate-node-cidrs=false
and leave --cluster-cidr as it is. ` + copiedIn + onward
	case inventory.K3s, inventory.RKE2:
		return reason + `on every server, add to /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml):
  kube-controller-manager-arg: ["allocate-node-cidrs=false"]
then restart one server after the other: systemctl restart k3s (or rke2-server).` + o.OfTemplates() + onward
	case inventory.KOps:
		return reason + kOpsOverwrites + onward
	case inventory.Talos:
		return reason + `on one control-plane node after the other, patch the machine configuration:
  cluster: {controllerManager: {extraArgs: {allocate-node-cidrs: "false"}}}      (or KubeControllerManagerConfig)
  talosctl -n NODE patch machineconfig --patch @FILE --mode no-reboot` + o.OfTemplates() + onward
	}
	return reason + `restart every kube-controller-manager with --allocate-node-cidrs=false.` + onward
}

func repointedGuide(o inventory.Origin, to netip.Prefix, bits int) string {
	size := ""
	if bits != usualBits {
		size = fmt.Sprintf(" --node-cidr-mask-size=%d", bits)
	}
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return fmt.Sprintf(
				`in the management cluster, set in clusterConfiguration of the KubeadmControlPlane (in v1beta1 extraArgs is a map):
  controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "true"}, {name: cluster-cidr, value: "%s"}%s]}
It replaces the machines of the control plane, one after the other. The pod network has the range in a configuration of its own, too.`,
				to,
				machineSize(bits),
			) + onward
		}
		return fmt.Sprintf(
			`set networking.podSubnet to %[1]s in the ClusterConfiguration (kubectl -n kube-system edit configmap kubeadm-config), and in extraArgs of
controllerManager, if they name cluster-cidr. Then on every control-plane node, in a copy of /etc/kubernetes/manifests/kube-controller-manager.yaml:
  --allocate-node-cidrs=true --cluster-cidr=%[1]s%[2]s
`+copiedIn+`
The pod network has the range in a configuration of its own, too (flannel: Network in configmap kube-flannel-cfg).`, to, size) + onward
	case inventory.K3s, inventory.RKE2:
		return fmt.Sprintf(
			`on every server, take allocate-node-cidrs=false out of kube-controller-manager-arg in /etc/rancher/k3s/config.yaml
(RKE2: /etc/rancher/rke2/config.yaml), and set:
  cluster-cidr: %s
then restart one server after the other: systemctl restart k3s (or rke2-server).`,
			to,
		) + o.OfTemplates() + onward
	case inventory.KOps:
		return fmt.Sprintf(`set it in the cluster's spec (kops edit cluster), where kOps gives Nodes ranges by itself:
  kubeControllerManager: {clusterCIDR: %s}
then: kops update cluster --yes && kops rolling-update cluster --instance-group-roles=control-plane --yes`, to) + onward
	case inventory.Talos:
		return fmt.Sprintf(`on one control-plane node after the other, take allocate-node-cidrs out of controllerManager.extraArgs, and set:
  cluster: {network: {podSubnets: [%s]}}      (or KubeNetworkConfig: podSubnets)
  talosctl -n NODE patch machineconfig --patch @FILE --mode no-reboot
The pod network has the range in a configuration of its own, too (flannel: Network in configmap kube-flannel-cfg).`, to) + o.OfTemplates() + onward
	}
	return fmt.Sprintf(`restart every kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr=%s%s.`, to, size) + onward
}

// machineSize is kubeadm's argument for the size of ranges; empty, if it is the usual one.
func machineSize(bits int) string {
	if bits == usualBits {
		return ""
	}
	return fmt.Sprintf(`, {name: node-cidr-mask-size, value: "%d"}`, bits)
}

func restoredGuide(o inventory.Origin, from []netip.Prefix) string {
	if len(from) == 0 {
		return ""
	}
	return "All nodes have their old ranges. Take back what was changed: the range must hold all of " + from[0].String() + ".\n" +
		repointedGuide(o, from[0], usualBits)
}
