package lab

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/machine"
)

// restartDeadline bounds the restart of one program, from the moment it is to end until it is of use again.
const restartDeadline = 2 * time.Minute

// RestartAPIServers does what the tooling of a cluster's operator does to change the range of Services: on one control
// plane after the other it issues a serving certificate for the first address of that range too, and for sans; gives
// API server and controller manager the range; ends the API server gracefully, starts it again, and waits until it is
// ready and back in the "kubernetes" EndpointSlice. Addresses that a certificate has been issued for stay in it.
//
// No serviceCIDRs, of which there is one for each family, keep what each control plane has now. No controlPlanes means all of them.
func (l ControlPlaneNodes) RestartAPIServers(
	ctx context.Context,
	serviceCIDRs []netip.Prefix,
	sans []netip.Addr,
	controlPlanes ...string,
) error {
	if len(serviceCIDRs) > 0 {
		sans = append(slices.Clone(sans), apiServiceIn(serviceCIDRs[0]))
	}
	return l.forControlPlanes(ctx, controlPlanes, func(ctx context.Context, member *Member, m *machine.Handle) error {
		if err := l.issueServing(ctx, member, m, sans); err != nil {
			return err
		}
		if err := rerun(ctx, m, apiServerProgram, serviceCIDRs); err != nil {
			return err
		}
		if err := l.waitAPIServer(ctx, member); err != nil || len(serviceCIDRs) == 0 {
			return err
		}
		return rerun(ctx, m, controllerManagerProgram, serviceCIDRs)
	})
}

// IssueCertificates makes the API servers serve certificates for the addresses sans beside those they have, without a
// restart: they notice new files by themselves. It returns when each does. No controlPlanes means all of them.
func (l ControlPlaneNodes) IssueCertificates(ctx context.Context, sans []netip.Addr, controlPlanes ...string) error {
	return l.forControlPlanes(ctx, controlPlanes, func(ctx context.Context, member *Member, m *machine.Handle) error {
		if err := l.issueServing(ctx, member, m, sans); err != nil {
			return err
		}
		return l.waitServing(ctx, member, m, sans)
	})
}

func (l ControlPlaneNodes) forControlPlanes(
	ctx context.Context, names []string, do func(ctx context.Context, member *Member, m *machine.Handle) error,
) error {
	for _, name := range names {
		if !slices.Contains(l.ControlPlanes(), name) {
			return &InvalidError{
				"control-plane", fmt.Sprintf("lab %s has no control plane %q", l.Topology.Name, name),
				"it has " + strings.Join(l.ControlPlanes(), ", "),
			}
		}
	}
	for _, member := range l.with(ControlPlane) {
		name := member.Name
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		m, err := l.Machine(name)
		if err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, restartDeadline)
		err = do(within, member, m)
		cancel()
		if err != nil {
			return fmt.Errorf("control plane %s: %w", name, err)
		}
	}
	return nil
}

// issueServing gives an API server a certificate for sans and for every address it has been good for before, unless the
// one it has is good for all of them.
func (l ControlPlaneNodes) issueServing(ctx context.Context, member *Member, m *machine.Handle, sans []netip.Addr) error {
	data, err := m.ReadFile(ctx, servingBase+".crt")
	if err != nil {
		return err
	}
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return err
	}
	if goodFor(certs[0], sans) == nil {
		return nil
	}
	for _, has := range certs[0].IPAddresses {
		if a, ok := netip.AddrFromSlice(has); ok {
			sans = append(sans[:len(sans):len(sans)], a.Unmap())
		}
	}
	ca, err := clusterCA(ctx, m)
	if err != nil {
		return err
	}
	var f files
	f.issue(servingBase, ca, l.serving(member, sans...))
	if f.err != nil {
		return f.err
	}
	for path, data := range f.content {
		if err := m.WriteFile(ctx, path, data); err != nil {
			return err
		}
	}
	return nil
}

// clusterCA is the cluster's authority, which lies where kubeadm puts it.
func clusterCA(ctx context.Context, m *machine.Handle) (*pki.CA, error) {
	crt, err := m.ReadFile(ctx, pkiDir+"ca.crt")
	if err != nil {
		return nil, err
	}
	key, err := m.ReadFile(ctx, pkiDir+"ca.key")
	if err != nil {
		return nil, err
	}
	return pki.LoadCA(pki.Pair{Cert: crt, Key: key})
}

// goodFor says for which of the addresses a certificate is not.
func goodFor(c *x509.Certificate, addresses []netip.Addr) error {
	for _, a := range addresses {
		if err := c.VerifyHostname(a.String()); err != nil {
			return err
		}
	}
	return nil
}

// waitServing waits until a control plane identifies itself, by a certificate of the cluster's authority, as all of
// sans.
func (l ControlPlaneNodes) waitServing(ctx context.Context, member *Member, m *machine.Handle, sans []netip.Addr) error {
	crt, err := m.ReadFile(ctx, pkiDir+"ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(crt)
	return until(ctx, "its API server to serve the new certificate", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "kubernetes"}}
		conn, err := dialer.DialContext(ctx, "tcp", member.fromHost())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		return goodFor(conn.(*tls.Conn).ConnectionState().PeerCertificates[0], sans)
	})
}

// rerun restarts a program with the ranges of Services given, or those it has if there are none.
func rerun(ctx context.Context, m *machine.Handle, name string, serviceCIDRs []netip.Prefix) error {
	p, err := m.Program(ctx, name)
	if err != nil {
		return err
	}
	if len(serviceCIDRs) > 0 {
		p.Argv = slices.Clone(p.Argv)
		for i, arg := range p.Argv {
			if strings.HasPrefix(arg, serviceCIDRFlag) {
				p.Argv[i] = serviceCIDRFlag + commas(serviceCIDRs)
			}
		}
	}
	return m.Run(ctx, p)
}

// WaitAPIServers waits until every API server is ready and Service kubernetes leads to it.
func (l ControlPlaneNodes) WaitAPIServers(ctx context.Context) error {
	return l.forControlPlanes(ctx, nil, func(ctx context.Context, member *Member, _ *machine.Handle) error {
		return l.waitAPIServer(ctx, member)
	})
}

// waitAPIServer waits until the API server of a control plane is ready and pods are led to it.
func (l ControlPlaneNodes) waitAPIServer(ctx context.Context, member *Member) error {
	config := l.RESTConfig()
	config.Host = "https://" + member.fromHost()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return until(ctx, "its API server", func(ctx context.Context) error {
		if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		slice, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		address := member.Address.String()
		if !slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
			return slices.Contains(e.Addresses, address) && ptr.Deref(e.Conditions.Ready, true)
		}) {
			return fmt.Errorf("EndpointSlice default/kubernetes does not have %s", address)
		}
		return nil
	})
}

// RestartKubelets gives kubelets another address of cluster DNS, unless it is zero, and restarts one after the other.
// It returns when each node is Ready and its kubelet shows that configuration. Pods keep running; those that start
// from then on get that address. No nodes means all of them.
func (l Workers) RestartKubelets(ctx context.Context, dns netip.Addr, nodes ...string) error {
	for _, name := range nodes {
		if !slices.Contains(l.NodeNames(), name) {
			return &InvalidError{
				"node", fmt.Sprintf("lab %s has no node %q", l.Topology.Name, name), "it has " + strings.Join(l.NodeNames(), ", "),
			}
		}
	}
	if len(nodes) == 0 {
		nodes = l.NodeNames()
	}
	for _, name := range nodes {
		within, cancel := context.WithTimeout(ctx, restartDeadline)
		err := l.restartKubelet(within, name, dns)
		cancel()
		if err != nil {
			return fmt.Errorf("kubelet on %s: %w", name, err)
		}
	}
	return nil
}

func (l Workers) restartKubelet(ctx context.Context, node string, dns netip.Addr) error {
	m, err := l.Machine(node)
	if err != nil {
		return err
	}
	data, err := m.ReadFile(ctx, kubeletConfigPath)
	if err != nil {
		return err
	}
	var config kubeletv1beta1.KubeletConfiguration
	if err := yaml.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("%s: %w", kubeletConfigPath, err)
	}
	if dns.IsValid() {
		config.ClusterDNS = []string{dns.String()}
		if data, err = yaml.Marshal(config); err != nil {
			return err
		}
		if err := m.WriteFile(ctx, kubeletConfigPath, data); err != nil {
			return err
		}
	}
	p, err := m.Program(ctx, "kubelet")
	if err != nil {
		return err
	}
	since := time.Now().Truncate(time.Second) // a Node's times have no fractions
	if err := m.Run(ctx, p); err != nil {
		return err
	}
	return l.waitKubelet(ctx, node, since, config.ClusterDNS)
}

// waitKubelet waits until the node was Ready at some time after since, and its kubelet says that it hands out dns.
func (l Workers) waitKubelet(ctx context.Context, name string, since time.Time, dns []string) error {
	client := l.Client()
	return until(ctx, "its node", func(ctx context.Context) error {
		if err := reported(ctx, client, name, since); err != nil {
			return err
		}
		shown, err := kubeletDNS(ctx, client.CoreV1().RESTClient(), name)
		if err == nil && !slices.Equal(shown, dns) {
			err = fmt.Errorf("it shows clusterDNS %v instead of %v", shown, dns)
		}
		return err
	})
}

// reported fails unless a node is Ready, and has said so at some time after since.
func reported(ctx context.Context, client kubernetes.Interface, name string, since time.Time) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, c := range node.Status.Conditions {
		if c.LastHeartbeatTime.Time.Before(since) {
			return errors.New("node has not reported since the restart")
		}
	}
	return nodeReady(node)
}

// kubeletDNS is the clusterDNS that a node's kubelet runs with.
func kubeletDNS(ctx context.Context, core rest.Interface, node string) ([]string, error) {
	data, err := core.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var shown struct {
		KubeletConfig kubeletv1beta1.KubeletConfiguration `json:"kubeletconfig"`
	}
	err = json.Unmarshal(data, &shown)
	return shown.KubeletConfig.ClusterDNS, err
}
