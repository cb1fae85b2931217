package installerconfig

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Kubeadm is kubeadm's configuration in a cluster: ConfigMaps of kube-system, and their keys.
type Kubeadm struct {
	// Cluster is ClusterConfiguration in kubeadm-config, Kubelet kubelet in kubelet-config, Proxy
	// config.conf in kube-proxy. The latter two may be empty.
	Cluster, Kubelet, Proxy string
}

// Configuration is a file for kubeadm init --config
// (docs/reference/config-api/kubeadm-config.v1beta4 of Kubernetes; v1beta3 has the flags as a map).
func (k Kubeadm) Configuration(w Overrides) ([]byte, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	const where = "kubectl -n kube-system get configmap kubeadm-config -o yaml shows it"
	c, err := one(k.Cluster, "ClusterConfiguration", where)
	if err != nil {
		return nil, err
	}
	if version := text(c, "apiVersion"); version != "kubeadm.k8s.io/v1beta3" && version != "kubeadm.k8s.io/v1beta4" {
		return nil, bad("kubeadm config migrate brings it to one of these",
			"its apiVersion is %q, and replumb knows kubeadm.k8s.io/v1beta3 and v1beta4", version)
	}
	was := text(c, "clusterName")
	if was == w.Name {
		return nil, bad("choose another one", "%s is the name of the source", w.Name)
	}
	if err := clash(w, text(c, "networking", "serviceSubnet"), text(c, "networking", "podSubnet")); err != nil {
		return nil, err
	}
	w.cluster(c)
	all := []*yaml.Node{c}
	for _, part := range []struct {
		body, kind string
		fields     []string
	}{
		{k.Kubelet, "KubeletConfiguration", kubeletFields()}, {k.Proxy, "KubeProxyConfiguration", proxyFields()},
	} {
		if part.body == "" {
			continue
		}
		n, err := one(part.body, part.kind, "kubectl -n kube-system get configmaps shows it")
		if err != nil {
			return nil, err
		}
		pick(n, append([]string{"apiVersion", "kind"}, part.fields...))
		all = append(all, n)
	}
	return write(fmt.Sprintf(`For kubeadm init --config on the first machine of %[1]s, the mirror of %[2]s. Nothing has been made yet.
Look for %[3]sand %[4]sin it. kubeadm makes the certificates, keys, tokens and etcd of the mirror itself: take none from the source.`,
		w.Name, cmp.Or(was, "the source"), strings.TrimSuffix(fillIn, " ")+" ", strings.TrimSuffix(check, " ")+" "), all)
}

func one(body, kind, hint string) (*yaml.Node, error) {
	all, err := documents([]byte(body))
	if err != nil {
		return nil, err
	}
	if len(all) != 1 || text(all[0], "kind") != kind {
		return nil, bad(hint, "it is no %s", kind)
	}
	if aliased(all[0]) {
		return nil, bad("write them out", "it has anchors or aliases")
	}
	plain(all[0])
	return all[0], nil
}

// clash refuses ranges of the mirror that overlap what it keeps of the source.
func clash(w Overrides, services, pods string) error {
	w.Services, w.Pods = kept(w.Services, services), kept(w.Pods, pods)
	return w.Validate()
}

func kept(wanted []netip.Prefix, has string) []netip.Prefix {
	if len(wanted) > 0 {
		return wanted
	}
	var all []netip.Prefix
	for part := range strings.SplitSeq(has, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func (w Overrides) cluster(c *yaml.Node) {
	set(c, "clusterName", scalar(w.Name))
	w.endpoint(c)
	w.networking(c)
	for _, component := range []string{"apiServer", "controllerManager", "scheduler"} {
		if n := get(c, component); n != nil && n.Kind == yaml.MappingNode {
			w.component(n)
		}
	}
	w.etcd(c)
	drop(c, "certificatesDir", "the mirror has certificates of its own, in kubeadm's usual folder")
	retain(c, "apiVersion", "kind", "clusterName", "kubernetesVersion", "featureGates",
		"imageRepository", "controlPlaneEndpoint", "networking", "apiServer", "controllerManager",
		"scheduler", "etcd", "dns", "proxy", "encryptionAlgorithm", "certificateValidityPeriod",
		"caCertificateValidityPeriod")
}

func (w Overrides) endpoint(c *yaml.Node) {
	was := text(c, "controlPlaneEndpoint")
	switch {
	case w.Endpoint != "":
		set(c, "controlPlaneEndpoint", scalar(w.Endpoint))
	case was != "":
		set(c, "controlPlaneEndpoint", scalar(""))
		remark(c, "controlPlaneEndpoint", fillIn+"host:port of the mirror's own API; the source has %s", was)
	}
}

func (w Overrides) networking(c *yaml.Node) {
	n := get(c, "networking")
	if n == nil || n.Kind != yaml.MappingNode {
		n = mapping()
		set(c, "networking", n)
	}
	retain(n, "dnsDomain", "serviceSubnet", "podSubnet")
	for _, r := range []struct {
		key  string
		want []netip.Prefix
	}{{"serviceSubnet", w.Services}, {"podSubnet", w.Pods}} {
		if len(r.want) > 0 {
			set(n, r.key, scalar(joined(r.want)))
		} else {
			remark(n, r.key, check+"as the source has it; where a route leads from one cluster to the other it needs another")
		}
	}
	if index(n, "dnsDomain") >= 0 {
		remark(n, "dnsDomain", "as the source has it: workloads know names in it")
	}
}

func (w Overrides) component(n *yaml.Node) {
	drop(n, "certSANs", fillIn+"the names and addresses of the mirror's API, if it has others than controlPlaneEndpoint")
	if env := get(n, "extraEnvs"); env != nil {
		drop(n, "extraEnvs", fillIn+"variables of the source, which may hold secrets: %s", names(env))
	}
	flags(get(n, "extraArgs"))
	if volumes := get(n, "extraVolumes"); volumes != nil && len(volumes.Content) > 0 {
		remark(n, "extraVolumes", fillIn+"these files have to be on the control-plane machines of the mirror, without keys of the source")
	}
	retain(n, "extraArgs", "extraVolumes", "timeoutForControlPlane")
}

func names(env *yaml.Node) string {
	var all []string
	for _, n := range env.Content {
		all = append(all, text(n, "name"))
	}
	return strings.Join(all, ", ")
}

// flags changes the flags of a component: a map in v1beta3, a list of names and values in v1beta4.
func flags(args *yaml.Node) {
	if args == nil {
		return
	}
	if args.Kind == yaml.MappingNode {
		for i := 0; i < len(args.Content); i += 2 {
			name := args.Content[i].Value
			switch why, out := flag(name, args.Content[i+1].Value); {
			case out:
				drop(args, name, "%s", why)
			case why != "":
				remark(args, name, "%s", why)
			}
		}
		return
	}
	for i, n := range args.Content {
		name := text(n, "name")
		switch why, out := flag(name, text(n, "value")); {
		case out:
			dropItem(args, i, name, why)
		case why != "":
			remark(n, "value", "%s", why)
		}
	}
}

func flag(name, value string) (why string, out bool) {
	own := []string{
		"etcd-", "tls-cert", "tls-private", "tls-sni", "client-ca-file", "proxy-client-",
		"requestheader-", "kubelet-client-", "kubelet-certificate-", "cluster-signing-",
		"root-ca-file", "service-account-key", "service-account-private", "service-account-signing",
		"advertise-address", "bind-address", "external-hostname", "peer-",
		"authentication-kubeconfig", "authorization-kubeconfig", "data-dir", "initial-", "listen-",
	}
	switch {
	case strings.HasPrefix(name, "service-account-issuer"), strings.HasPrefix(name, "service-account-jwks"), name == "api-audiences":
		return fillIn + "the mirror's own issuer, if something outside trusts the source's, such as roles of a cloud", true
	case name == "service-cluster-ip-range", name == "cluster-cidr":
		return "kubeadm sets it by networking", true
	case name == "cluster-name":
		return "kubeadm sets it by clusterName", true
	case slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
		return "it is of the source's own certificates, addresses or etcd", true
	case name == "encryption-provider-config":
		return fillIn + "a file with keys of the mirror's own", false
	case secretive(name) && !harmless(value):
		return fillIn + "it holds or leads to a secret of the source", true
	case strings.HasPrefix(value, "/"):
		return fillIn + "put this file on the control-plane machines of the mirror", false
	case strings.Contains(value, "://") && strings.Contains(value, "@"):
		return fillIn + "it may hold a password", true
	}
	return "", false
}

// harmless reports whether a value can be no secret: it is yes or no, a number or a duration.
func harmless(value string) bool {
	_, err := time.ParseDuration(value)
	_, notBool := strconv.ParseBool(value)
	_, notNumber := strconv.Atoi(value)
	return err == nil || notBool == nil || notNumber == nil
}

func (w Overrides) etcd(c *yaml.Node) {
	n := get(c, "etcd")
	if n == nil || n.Kind != yaml.MappingNode {
		return
	}
	drop(n, "external",
		fillIn+"an etcd of the mirror's own, and never that of the source; without one kubeadm makes it on the control plane")
	if local := get(n, "local"); local != nil && local.Kind == yaml.MappingNode {
		drop(local, "serverCertSANs", "they are names of the source's members")
		drop(local, "peerCertSANs", "they are names of the source's members")
		drop(local, "dataDir", "the mirror begins with an empty etcd, in kubeadm's usual folder")
		drop(local, "extraEnvs", "variables of the source, which may hold secrets")
		flags(get(local, "extraArgs"))
		retain(local, "imageRepository", "imageTag", "extraArgs")
	}
	retain(n, "local")
}

// pick removes unnamed fields silently: defaults, and what is about the source's machines.
func pick(n *yaml.Node, fields []string) {
	for i := 0; i < len(n.Content); {
		if slices.Contains(fields, n.Content[i].Value) {
			i += 2
			continue
		}
		n.Content = slices.Delete(n.Content, i, i+2)
	}
}

func kubeletFields() []string {
	return []string{
		"featureGates", "maxPods", "podPidsLimit", "cgroupDriver", "clusterDomain",
		"containerLogMaxSize", "containerLogMaxFiles", "systemReserved", "kubeReserved",
		"evictionHard", "evictionSoft", "evictionSoftGracePeriod", "imageGCHighThresholdPercent",
		"imageGCLowThresholdPercent", "serializeImagePulls", "maxParallelImagePulls",
		"allowedUnsafeSysctls", "topologyManagerPolicy", "cpuManagerPolicy", "memoryManagerPolicy",
		"shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "seccompDefault", "failSwapOn",
		"memorySwap", "registryPullQPS", "registryBurst",
	}
}

func proxyFields() []string {
	return []string{"mode", "featureGates", "ipvs", "iptables", "nftables", "conntrack"}
}
