package kubeadm

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"
)

// SetClusterDNS has a KubeletConfiguration name other addresses of cluster DNS, in the places of
// the former ones. A configuration that names them already, or a cache on the node, is returned as
// it is.
func SetClusterDNS(file string, text []byte, former, want []string) ([]byte, error) {
	doc, err := read(file, text)
	if err != nil {
		return nil, err
	}
	if kind := doc.scalar("kind"); kind != "KubeletConfiguration" {
		return nil, unusual(file, "is of kind %q, not KubeletConfiguration", kind)
	}
	if folder := doc.scalar("staticPodPath"); folder != "" && folder != ManifestsDir {
		return nil, unusual(file, "has static pods in %s, not %s", folder, ManifestsDir)
	}
	for i, address := range former {
		if text, err = replaceDNS(file, text, address, want[i]); err != nil {
			return nil, err
		}
	}
	return text, nil
}

func replaceDNS(file string, text []byte, former, want string) ([]byte, error) {
	doc, err := read(file, text)
	if err != nil {
		return nil, err
	}
	list := doc.field("clusterDNS")
	if list == nil || list.Kind != yaml.SequenceNode {
		return nil, unusual(file, "has no list clusterDNS")
	}
	named := func(address string) int {
		return slices.IndexFunc(list.Content, func(n *yaml.Node) bool { return n.Value == address })
	}
	at := named(former)
	switch {
	case at < 0 && (named(want) >= 0 || cached(list)):
		return text, nil
	case at < 0:
		return nil, unusual(file, "does not name %s as clusterDNS, which was to become %s", former, want)
	}
	return doc.replace(list.Content[at], want)
}

// cached reports whether kubelets name a cache on their own node, which keeps its address when
// cluster DNS moves: NodeLocal DNSCache at link-local addresses.
func cached(list *yaml.Node) bool {
	return len(list.Content) > 0 && !slices.ContainsFunc(list.Content, func(n *yaml.Node) bool {
		a, err := netip.ParseAddr(n.Value)
		return err != nil || !a.IsLinkLocalUnicast()
	})
}

// Healthz is the address at which a kubelet with a configuration says that it is healthy
// (SetDefaults_KubeletConfiguration in k8s.io/kubernetes pkg/kubelet/apis/config/v1beta1).
func Healthz(file string, text []byte) (string, error) {
	doc, err := read(file, text)
	if err != nil {
		return "", err
	}
	host, port := cmp.Or(doc.scalar("healthzBindAddress"), "127.0.0.1"), cmp.Or(doc.scalar("healthzPort"), "10248")
	if port == "0" {
		return "", unusual(file, "has healthzPort 0, so that its kubelet does not say whether it is healthy")
	}
	return "http://" + net.JoinHostPort(host, port) + "/healthz", nil
}

// ManifestsDir is where kubeadm has kubelets run static pods from.
const ManifestsDir = "/etc/kubernetes/manifests"
