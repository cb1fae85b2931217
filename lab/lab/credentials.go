package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/testing/pki"
)

// credentials are the authorities of one lab's cluster and the key its ServiceAccount tokens are signed with.
type credentials struct {
	cluster, etcd, frontProxy *pki.CA
	// site signs for names that people outside know.
	site            *pki.CA
	serviceAccounts pki.Pair
}

func newCredentials() (*credentials, error) {
	var c credentials
	for _, a := range []struct {
		ca   **pki.CA
		name string
	}{{&c.cluster, "kubernetes-ca"}, {&c.etcd, "etcd-ca"}, {&c.frontProxy, "front-proxy-ca"}, {&c.site, "lab-ca"}} {
		ca, err := pki.NewCA(a.name)
		if err != nil {
			return nil, err
		}
		*a.ca = ca
	}
	var err error
	c.serviceAccounts, err = pki.NewKeyPair()
	return &c, err
}

// files maps paths on a machine to contents. Errors of what fills it are kept until the end, so that a list of
// certificates reads as a list.
type files struct {
	content map[string][]byte
	err     error
}

func (f *files) add(path string, data []byte) {
	if f.content == nil {
		f.content = map[string][]byte{}
	}
	f.content[path] = data
}

func (f *files) pair(base string, p pki.Pair) {
	f.add(base+".crt", p.Cert)
	f.add(base+".key", p.Key)
}

func (f *files) issue(base string, ca *pki.CA, r pki.Request) {
	p, err := ca.Issue(r)
	if err != nil && f.err == nil {
		f.err = err
	}
	f.pair(base, p)
}

func (f *files) kubeconfig(path, server string, ca *pki.CA, r pki.Request) {
	p, err := ca.Issue(r)
	if err != nil && f.err == nil {
		f.err = err
	}
	data, err := kubeconfig(server, ca, p)
	if err != nil && f.err == nil {
		f.err = err
	}
	f.add(path, data)
}

// kubeconfig identifies a client by certificate to the API server at server.
func kubeconfig(server string, ca *pki.CA, client pki.Pair) ([]byte, error) {
	const name = "replumb-lab"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca.Cert}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: client.Cert, ClientKeyData: client.Key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}

const pkiDir = "/etc/kubernetes/pki/"

// servingBase is where an API server has its serving certificate and key.
const servingBase = pkiDir + "apiserver"

// serving is what the API server of control plane i identifies itself with: its own address, those of the machines that
// forward to it, and addresses of the "kubernetes" Service.
func (l ControlPlaneNodes) serving(m *Member, services ...netip.Addr) pki.Request {
	r := pki.Request{
		CommonName: "kube-apiserver",
		Names: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain,
			m.Name, "localhost",
		},
		Addresses: append(ips(m.addresses()), net.IPv4(127, 0, 0, 1)),
	}
	if l.Topology.Edge {
		r.Names = append(r.Names, l.Edge().API)
	} else {
		services = append([]netip.Addr{l.Balancers().endpoint().Addr()}, services...)
	}
	for _, a := range services {
		if !slices.ContainsFunc(r.Addresses, ip(a).Equal) {
			r.Addresses = append(r.Addresses, ip(a))
		}
	}
	return r
}

// controlPlaneFiles is everything that kubeadm would put under /etc/kubernetes on a control-plane machine.
func (l ControlPlaneNodes) files(m *Member, c *credentials, services ...netip.Addr) (map[string][]byte, error) {
	var f files
	f.pair(pkiDir+"ca", c.cluster.Pair)
	f.pair(pkiDir+"front-proxy-ca", c.frontProxy.Pair)
	f.pair(pkiDir+"etcd/ca", c.etcd.Pair)
	f.pair(pkiDir+"sa", c.serviceAccounts)

	f.issue(servingBase, c.cluster, l.serving(m, services...))
	f.issue(pkiDir+"apiserver-kubelet-client", c.cluster, pki.Request{CommonName: kubeletClientUser})
	f.issue(pkiDir+"front-proxy-client", c.frontProxy, pki.Request{CommonName: "front-proxy-client"})
	member := pki.Request{
		CommonName: m.Name, Names: []string{m.Name, "localhost"},
		Addresses: append(ips(m.addresses()), net.IPv4(127, 0, 0, 1)),
	}
	f.issue(pkiDir+"etcd/server", c.etcd, member)
	f.issue(pkiDir+"etcd/peer", c.etcd, member)
	f.issue(pkiDir+"apiserver-etcd-client", c.etcd, pki.Request{CommonName: "kube-apiserver-etcd-client"})

	for name, user := range map[string]string{
		"controller-manager": "system:kube-controller-manager", "scheduler": "system:kube-scheduler",
	} {
		f.kubeconfig("/etc/kubernetes/"+name+".conf", "https://"+m.apiServer().String(), c.cluster, pki.Request{CommonName: user})
	}
	f.kubeconfig(podnetKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: podnetUser})
	if l.Topology.callsServices() {
		config, err := yaml.Marshal(proxyConfig(l.Topology, m.Name, controlPlaneProxy))
		f.err = errors.Join(f.err, err)
		f.add(proxyConfigPath, config)
		f.kubeconfig(proxyKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: proxyUser})
	}
	return f.content, f.err
}

// nodeFiles is what identifies a worker to the cluster, and the other way round.
func (l Workers) files(m *Member, c *credentials) (map[string][]byte, error) {
	var f files
	f.add(pkiDir+"ca.crt", c.cluster.Cert)
	f.kubeconfig("/etc/kubernetes/kubelet.conf", l.Balancers().server(), c.cluster,
		pki.Request{CommonName: "system:node:" + m.Name, Organization: []string{"system:nodes"}})
	f.kubeconfig(proxyKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: proxyUser})
	switch {
	case l.Topology.CNI.isCalico():
		f.kubeconfig(calicoKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: calicoUser})
	case l.Topology.CNI == HostLocal:
		f.kubeconfig(podnetKubeconfig, l.Balancers().server(), c.cluster, pki.Request{CommonName: podnetUser})
	}
	f.issue("/var/lib/kubelet/pki/kubelet", c.cluster, pki.Request{
		CommonName: "system:node:" + m.Name, Organization: []string{"system:nodes"},
		Names: []string{m.Name}, Addresses: ips(m.addresses()),
	})
	return f.content, f.err
}

// adminKubeconfig is the one the person who made the lab uses, from the host.
func adminKubeconfig(c *credentials, port int) ([]byte, error) {
	p, err := c.cluster.Issue(admin())
	if err != nil {
		return nil, err
	}
	return kubeconfig(fmt.Sprintf("https://127.0.0.1:%d", port), c.cluster, p)
}

func admin() pki.Request {
	return pki.Request{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
}

func ips(all []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range all {
		out = append(out, ip(a))
	}
	return out
}

func ip(a netip.Addr) net.IP { return net.IP(a.AsSlice()) }
