package kubeadm

import (
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Configuration is the ClusterConfiguration in ConfigMap kubeadm-config, which upgrades and joining
// control planes go by (k8s.io/kubernetes cmd/kubeadm/app/apis/kubeadm/v1beta4).
type Configuration struct{ doc *document }

const configurationFile = "ConfigMap kube-system/kubeadm-config"

// ReadConfiguration reads the text under the key ClusterConfiguration.
func ReadConfiguration(text string) (*Configuration, error) {
	doc, err := read(configurationFile, []byte(text))
	if err != nil {
		return nil, err
	}
	if kind := doc.scalar("kind"); kind != "ClusterConfiguration" {
		return nil, unusual(configurationFile, "is of kind %q, not ClusterConfiguration", kind)
	}
	return &Configuration{doc}, nil
}

// Refuse says why files of control planes are not to be changed by it; nil, if they may. Flags are
// those that are to have other values.
func (c *Configuration) Refuse(flags ...string) error {
	if dir := c.doc.scalar("certificatesDir"); dir != "" && dir != PKIDir {
		return unusual(configurationFile, "has certificatesDir %s, not %s", dir, PKIDir)
	}
	for _, program := range []string{"apiServer", "controllerManager"} {
		for _, flag := range flags {
			if _, given := c.extra(program, flag); given {
				return unusual(configurationFile, "sets %s in %s.extraArgs, which would win over its networking", flag, program)
			}
		}
	}
	return nil
}

// ServiceSubnet and PodSubnet are ranges, separated by commas; empty, if kubeadm chose its own.
func (c *Configuration) ServiceSubnet() string { return c.doc.scalar("networking", "serviceSubnet") }
func (c *Configuration) PodSubnet() string     { return c.doc.scalar("networking", "podSubnet") }

// SetServiceSubnet returns the text with other Service ranges.
func (c *Configuration) SetServiceSubnet(ranges string) (string, error) {
	return c.setNetworking("serviceSubnet", ranges)
}

// SetPodSubnet returns the text with other pod ranges.
func (c *Configuration) SetPodSubnet(ranges string) (string, error) {
	return c.setNetworking("podSubnet", ranges)
}

func (c *Configuration) setNetworking(key, value string) (string, error) {
	n := c.doc.field("networking", key)
	if n == nil {
		return "", unusual(configurationFile, "has no networking.%s", key)
	}
	text, err := c.doc.replace(n, value)
	return string(text), err
}

// CertSANs are the names and addresses that certificates of API servers have beside the usual ones.
func (c *Configuration) CertSANs() (all []string) {
	if list := c.doc.field("apiServer", "certSANs"); list != nil {
		for _, n := range list.Content {
			all = append(all, n.Value)
		}
	}
	return all
}

// AddCertSANs returns the text with addresses that it lacks. The rest is written anew as kubeadm
// writes it.
func (c *Configuration) AddCertSANs(also ...netip.Addr) (string, error) {
	have := c.CertSANs()
	var missing []string
	for _, a := range also {
		if !slices.Contains(have, a.String()) {
			missing = append(missing, a.String())
		}
	}
	return c.withCertSANs(slices.Concat(have, missing))
}

// RemoveCertSANs returns the text without some addresses.
func (c *Configuration) RemoveCertSANs(gone func(netip.Addr) bool) (string, error) {
	return c.withCertSANs(slices.DeleteFunc(c.CertSANs(), func(name string) bool {
		a, err := netip.ParseAddr(name)
		return err == nil && gone(a)
	}))
}

func (c *Configuration) withCertSANs(all []string) (string, error) {
	if slices.Equal(all, c.CertSANs()) {
		return string(c.doc.text), nil
	}
	edited, err := read(configurationFile, c.doc.text)
	if err != nil {
		return "", err
	}
	server := edited.field("apiServer")
	if server == nil {
		server = &yaml.Node{Kind: yaml.MappingNode}
		edited.root.Content = append([]*yaml.Node{scalarNode("apiServer"), server}, edited.root.Content...)
	}
	if server.Kind != yaml.MappingNode {
		return "", unusual(configurationFile, "has no object apiServer")
	}
	server.Style = 0
	setList(server, "certSANs", all)
	text, err := edited.encoded()
	return string(text), err
}

// setList takes an empty list out.
func setList(n *yaml.Node, key string, values []string) {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, v := range values {
		list.Content = append(list.Content, scalarNode(v))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != key {
			continue
		}
		if n.Content[i+1] = list; len(values) == 0 {
			n.Content = slices.Delete(n.Content, i, i+2)
			if len(n.Content) == 0 {
				n.Style = yaml.FlowStyle
			}
		}
		return
	}
	if len(values) > 0 {
		n.Content = append([]*yaml.Node{scalarNode(key), list}, n.Content...)
	}
}

func scalarNode(value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
	if strings.Contains(value, ":") { // as IPv6 addresses end
		n.Style = yaml.SingleQuotedStyle
	}
	return n
}

// PKIDir is where kubeadm writes certificates.
const PKIDir = "/etc/kubernetes/pki"
