package noderanges

import (
	"fmt"
	"net/netip"

	"github.com/replumb/replumb/internal/kube/cluster"
)

const onward = "\nreplumb makes a Node of its own to see what they do, and goes on by itself."

func pausedGuide(d cluster.Distribution) string {
	const reason = `a controller manager that gives nodes ranges does not start while any Node has one outside of its --cluster-cidr.
Nodes that join meanwhile get theirs from replumb.
`
	switch d {
	case cluster.Kubeadm:
		return reason + `on every control-plane node, set in /etc/kubernetes/manifests/kube-controller-manager.yaml:
  --allocate-node-cidrs=false
and leave --cluster-cidr as it is. The kubelet restarts it by itself.` + onward
	case cluster.K3s:
		return reason + `on every server, add to /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml):
  kube-controller-manager-arg: ["allocate-node-cidrs=false"]
then restart one server after the other: systemctl restart k3s (or rke2-server).` + onward
	case cluster.KOps:
		return reason + `set it in the cluster's spec (kops edit cluster):
  kubeControllerManager: {allocateNodeCIDRs: false}
then: kops update cluster --yes && kops rolling-update cluster --instance-group-roles=control-plane --yes` + onward
	}
	return reason + `restart every kube-controller-manager with --allocate-node-cidrs=false.` + onward
}

func repointedGuide(d cluster.Distribution, to netip.Prefix, bits int) string {
	size := ""
	if bits != 24 {
		size = fmt.Sprintf(" --node-cidr-mask-size=%d", bits)
	}
	switch d {
	case cluster.Kubeadm:
		return fmt.Sprintf(
			`set networking.podSubnet to %[1]s in the ClusterConfiguration (kubectl -n kube-system edit configmap kubeadm-config),
then on every control-plane node, in /etc/kubernetes/manifests/kube-controller-manager.yaml:
  --allocate-node-cidrs=true --cluster-cidr=%[1]s%[2]s
The pod network has the range in a configuration of its own, too (flannel: Network in configmap kube-flannel-cfg).`, to, size) + onward
	case cluster.K3s:
		return fmt.Sprintf(
			`on every server, take allocate-node-cidrs=false out of kube-controller-manager-arg in /etc/rancher/k3s/config.yaml
(RKE2: /etc/rancher/rke2/config.yaml), and set:
  cluster-cidr: %s
then restart one server after the other: systemctl restart k3s (or rke2-server).`,
			to,
		) + onward
	case cluster.KOps:
		return fmt.Sprintf(`set it in the cluster's spec (kops edit cluster):
  kubeControllerManager: {allocateNodeCIDRs: true, clusterCIDR: %s}
then: kops update cluster --yes && kops rolling-update cluster --instance-group-roles=control-plane --yes`, to) + onward
	}
	return fmt.Sprintf(`restart every kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr=%s%s.`, to, size) + onward
}

func restoredGuide(d cluster.Distribution, from []netip.Prefix) string {
	if len(from) == 0 {
		return ""
	}
	return "All nodes have their old ranges. Take back what was changed: the range must hold all of " + from[0].String() + ".\n" +
		repointedGuide(d, from[0], 24)
}
