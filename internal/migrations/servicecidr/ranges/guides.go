package ranges

import (
	"fmt"
	"net/netip"

	"github.com/replumb/replumb/internal/kube/inventory"
)

// Instructions of the gates, per distribution, as in docs/platforms. RP1750 stops before where the
// control plane is another's.

// notYours begins a guide that the user is not the one to follow; else empty.
func notYours(o inventory.Origin) string {
	if who := o.Distribution.Owner(); who != "" {
		return fmt.Sprintf(
			"The control plane of %s is run by %s, and what is changed there by hand does not last. If they cannot do this, go back: "+
				"replumb rollback.\n",
			o.Distribution,
			who,
		)
	}
	return ""
}

// CertificateGuide has API servers name both addresses of kubernetes.
func CertificateGuide(o inventory.Origin, old, want netip.Addr) string {
	end := o.OfTemplates() +
		"\nBoth addresses have to be there: clients use both for now. replumb goes on by itself when it sees them, and finish looks again."
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return fmt.Sprintf(`in the management cluster, add to the KubeadmControlPlane (spec.kubeadmConfigSpec):
  clusterConfiguration: {apiServer: {certSANs: ["%s", "%s"]}}
It replaces the machines of the control plane, one after the other. Keep the addresses for the life of the cluster.`, want, old) + end
		}
		return fmt.Sprintf(
			`add %[1]s and %[2]s to apiServer.certSANs of the ClusterConfiguration (kubectl -n kube-system edit configmap kubeadm-config),
then on every control-plane node:
  mkdir -p /root/before && cp -a /etc/kubernetes/pki/apiserver.{crt,key} /etc/kubernetes/manifests /root/before/
  kubectl -n kube-system get configmap kubeadm-config -o jsonpath='{.data.ClusterConfiguration}' > /tmp/kubeadm.yaml
  rm /etc/kubernetes/pki/apiserver.{crt,key}
  kubeadm init phase certs apiserver --config /tmp/kubeadm.yaml
The API server takes the new certificate up by itself within a minute.`,
			want, old,
		) + end
	case inventory.K3s, inventory.RKE2:
		return fmt.Sprintf(`on every server, add to /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml):
  tls-san:
    - %s
    - %s
then restart one server after the other: systemctl restart k3s (or rke2-server).`, want, old) + end
	case inventory.KOps:
		return fmt.Sprintf(`add the addresses to the cluster's spec (kops edit cluster):
  additionalSans: ["%s", "%s"]
then: kops update cluster --yes && kops rolling-update cluster --instance-group-roles=control-plane --yes`, want, old) + end
	case inventory.Talos:
		return fmt.Sprintf(`on one control-plane node after the other, patch the machine configuration:
  cluster: {apiServer: {certSANs: ["%s", "%s"]}}      (or KubeAPIServerConfig: certExtraSANs)
  talosctl -n NODE patch machineconfig --patch @FILE --mode no-reboot
Talos issues the certificate again by itself.`, want, old) + end
	}
	return notYours(
		o,
	) + fmt.Sprintf(
		`issue a new serving certificate for every API server (--tls-cert-file), with the IP addresses %s and %s among its
subject alternative names. The API server takes a changed file up by itself within a minute.`,
		want,
		old,
	) + end
}

// KubeletGuide is about the family that moves; kept are addresses of the other.
func KubeletGuide(o inventory.Origin, want string, kept []netip.Addr) string {
	end := `
Go on to the next node once the pods of the last one are ready again: before Kubernetes 1.35 a kubelet that starts takes them for unready.
Change what new nodes are made of as well: launch templates, node classes, images. finish asks every kubelet again, also those that came later.
Running pods are not touched by this. replumb asks every kubelet and goes on by itself.`
	end = o.OfTemplates() + end
	for _, a := range kept {
		end = fmt.Sprintf("\nA kubelet that names %s as well goes on doing so, in the place that it has.", a) + end
	}
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return fmt.Sprintf(
				`set clusterDNS to [%s] for machines to come (in this cluster: kubectl -n kube-system edit configmap kubelet-config), then have
the management cluster replace all machines:
  clusterctl alpha rollout restart machinedeployment/NAME, then kubeadmcontrolplane/NAME
Where bootstrap configurations set cluster-dns themselves, change them instead.`,
				want,
			) + end
		}
		return fmt.Sprintf(
			`set clusterDNS to [%[1]s] for new nodes (kubectl -n kube-system edit configmap kubelet-config), then on every node:
  kubeadm upgrade node phase kubelet-config && systemctl restart kubelet
or edit clusterDNS in /var/lib/kubelet/config.yaml there and restart the kubelet.`,
			want,
		) + end
	case inventory.K3s, inventory.RKE2:
		return fmt.Sprintf(`on every server, set in /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml):
  cluster-dns: %s
then restart every server, and after them every agent: systemctl restart k3s / k3s-agent (rke2-server / rke2-agent).`, want) + end
	case inventory.KOps:
		return fmt.Sprintf(
			`kOps gives kubelets the tenth address of serviceClusterIPRange, and refuses another one unless this is set where it runs:
  export KOPS_FEATURE_FLAGS=+ExperimentalClusterDNS
Then set it in the cluster's spec (kops edit cluster):
  kubelet: {clusterDNS: %[1]s}
and: kops update cluster --yes && kops rolling-update cluster --yes`,
			want,
		) + end
	case inventory.Talos:
		return fmt.Sprintf(`on every node, one after the other, patch the machine configuration:
  machine: {kubelet: {clusterDNS: ["%s"]}}      (or KubeletConfig: clusterDNS)
  talosctl -n NODE patch machineconfig --patch @FILE --mode no-reboot
Talos restarts the kubelet. A patch may add to a list that is there: the old address has to go.`, want) + end
	}
	if o.Distribution.Owner() != "" {
		return fmt.Sprintf(
			`set clusterDNS to [%s] in what %s makes nodes of, where it has a setting for that, and replace the nodes; if it has none,
go back: replumb rollback.`,
			want,
			o.Distribution,
		) + end
	}
	return fmt.Sprintf(
		`set clusterDNS to [%s] in the configuration of every kubelet (or --cluster-dns) and restart the kubelets.`,
		want,
	) + end
}

// APIServerGuide has the whole list; the first range is that of the primary family.
func APIServerGuide(o inventory.Origin, ranges []netip.Prefix) string {
	want := FlagText(ranges)
	end := o.OfTemplates() + "\nOne server at a time, so that the others answer meanwhile. replumb goes on by itself when it sees all of them on it."
	switch o.Distribution {
	case inventory.Kubeadm:
		if o.ClusterAPI {
			return fmt.Sprintf(
				`in the management cluster, set in clusterConfiguration of the KubeadmControlPlane (in v1beta1 extraArgs is a map):
  apiServer:         {extraArgs: [{name: service-cluster-ip-range, value: "%[1]s"}]}
  controllerManager: {extraArgs: [{name: service-cluster-ip-range, value: "%[1]s"}]}
It replaces the machines of the control plane, one after the other. Keep it for the life of the cluster: networking.serviceSubnet cannot change.`,
				want,
			) + end
		}
		return fmt.Sprintf(
			`set networking.serviceSubnet to %[1]s in the ClusterConfiguration (kubectl -n kube-system edit configmap kubeadm-config),
and in extraArgs of apiServer and controllerManager, if they name service-cluster-ip-range. Then on one control-plane node after the other set
--service-cluster-ip-range=%[1]s in copies of kube-apiserver.yaml and, if it has the flag, kube-controller-manager.yaml, and copy them into
/etc/kubernetes/manifests. Keep the former ones elsewhere: the kubelet runs every file in that folder, temporary ones of sed -i too.`,
			want,
		) + end
	case inventory.K3s, inventory.RKE2:
		return fmt.Sprintf(`on one server after the other, set in /etc/rancher/k3s/config.yaml (RKE2: /etc/rancher/rke2/config.yaml):
  service-cidr: %s
and restart it: systemctl restart k3s (or rke2-server). A server that finds another value on the others may refuse to
start: then stop all servers, change all, and start them. Traffic between pods and Services goes on meanwhile.`, want) + end
	case inventory.KOps:
		return fmt.Sprintf(`set serviceClusterIPRange: %s in the cluster's spec (kops edit cluster), then:
  kops update cluster --yes && kops rolling-update cluster --instance-group-roles=control-plane --yes`, want) + end
	case inventory.Talos:
		return fmt.Sprintf(`on one control-plane node after the other, then on every worker, patch the machine configuration:
  cluster: {network: {serviceSubnets: [%s]}}      (or KubeNetworkConfig: serviceSubnets)
  talosctl -n NODE patch machineconfig --patch @FILE --mode no-reboot
Look at it with --dry-run first: it has to hold the new value alone. Kubelets' clusterDNS is set by now, or it would follow.`, want) + end
	}
	return notYours(
		o,
	) + fmt.Sprintf(
		`restart every kube-apiserver and kube-controller-manager with --service-cluster-ip-range=%s.`,
		want,
	) + end
}
