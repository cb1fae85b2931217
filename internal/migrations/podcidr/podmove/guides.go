package podmove

import "github.com/replumb/replumb/internal/kube/inventory"

// movedGuide says where an installer has the range of pods; nothing, if it is not known. left is a
// Node that keeps a range which a controller manager gave it and the network does not go by.
func movedGuide(o inventory.Origin, to, left string) string {
	const why = "with the old range there, an upgrade or a new node brings it back.\n"
	also := func(setting string) string {
		if left == "" {
			return ""
		}
		return "\nand " + setting + ",\nor controller managers do not start with it: " + left
	}
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return why + clusterAPIMovedGuide(to, left)
		}
		return why + "set networking.podSubnet to " + to + " in the ClusterConfiguration" +
			also(`controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "false"}]} (before v1beta4 extraArgs is a map)`) +
			":\n" + editKubeadmConfig
	case inventory.KOps:
		return why + "look at kops get cluster -o yaml: no podCIDR, and no setting of the network's addon, names the old range"
	case inventory.K3s, inventory.RKE2:
		return why + "on every server, set in /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml), for the next restart:\n  cluster-cidr: " + to +
			also(`kube-controller-manager-arg: ["allocate-node-cidrs=false"]`) + o.OfTemplates()
	case inventory.Talos:
		return why + "on every control-plane node, set in the machine configuration:\n  cluster: {network: {podSubnets: [" + to + "]}}" +
			also(`cluster: {controllerManager: {extraArgs: {allocate-node-cidrs: "false"}}}`) + o.OfTemplates()
	}
	return ""
}

// editKubeadmConfig is how people change what kubeadm keeps in the cluster.
const editKubeadmConfig = "  kubectl -n kube-system edit configmap kubeadm-config"

// clusterAPIMovedGuide has the flag before the range: control planes overwrite controllerManager of
// kubeadm's configuration with their own, and leave networking alone
// (UpdateControllerManagerInKubeadmConfigMap in kubernetes-sigs/cluster-api
// controlplane/kubeadm/internal).
func clusterAPIMovedGuide(to, left string) string {
	flag := ""
	if left != "" {
		flag = `in the management cluster, set in clusterConfiguration of the KubeadmControlPlane (in v1beta1 extraArgs is a map):
  controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "false"}]}
or controller managers do not start with the new range: ` + left + `.
It replaces the machines of the control plane, one after the other. Keep the flag for the life of the cluster. Wait until it has, then
`
	}
	return flag + "set networking.podSubnet to " + to + " in the ClusterConfiguration of this cluster:\n" + editKubeadmConfig +
		"\nand, for programs that read it, clusterNetwork.pods of the Cluster in the management cluster"
}
