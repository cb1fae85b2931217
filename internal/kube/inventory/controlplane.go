package inventory

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/controlplane"
)

// ControlPlane is what is seen of it where kubelets run it from files.
type ControlPlane struct {
	Programs []StaticProgram
	// Configuration is kubeadm's ClusterConfiguration, and Kubelets what it configures kubelets to
	// come with; empty, if there is none.
	Configuration, Kubelets string
}

// StaticProgram is an API server or a controller manager on a Node.
type StaticProgram struct {
	Component controlplane.Component
	Node      string
	command   []string
}

// Flag is its value, and whether it is there.
func (p *StaticProgram) Flag(name string) (string, bool) { return flag(p.command, name) }

func (c *ControlPlane) takePod(o *corev1.Pod) {
	for _, component := range []controlplane.Component{controlplane.APIServer, controlplane.ControllerManager} {
		if !component.IsStatic(o) {
			continue
		}
		for n := range o.Spec.Containers {
			if words := commandLine(&o.Spec.Containers[n]); runs(words, string(component)) {
				c.Programs = append(c.Programs, StaticProgram{Component: component, Node: o.Spec.NodeName, command: words})
			}
		}
	}
}

func (c *ControlPlane) takeConfigMap(o *corev1.ConfigMap) {
	if o.Namespace != metav1.NamespaceSystem {
		return
	}
	switch o.Name {
	case controlplane.KubeadmConfig:
		c.Configuration = o.Data["ClusterConfiguration"]
	case controlplane.KubeletConfig:
		c.Kubelets = o.Data["kubelet"]
	}
}

// Reached is an address that the control plane is reached at, or reaches etcd at, and that need not
// be a Node's. Object says that it is that of What.
type Reached struct {
	Object, What string
	Address      netip.Addr
}

// Reached are those that are written as addresses. Names may lead anywhere.
func (c *ControlPlane) Reached() (all []Reached) {
	if a, is := addressOf(controlplane.Endpoint(c.Configuration)); is {
		all = append(all, Reached{"ConfigMap kube-system/" + controlplane.KubeadmConfig, "controlPlaneEndpoint", a})
	}
	for i := range c.Programs {
		p := &c.Programs[i]
		servers, _ := p.Flag("etcd-servers")
		for text := range strings.SplitSeq(servers, ",") {
			if a, is := addressOf(text); is && !a.IsLoopback() {
				all = append(all, Reached{"Node " + p.Node, "etcd (--etcd-servers of " + string(p.Component) + " on " + p.Node + ")", a})
			}
		}
	}
	return all
}

// addressOf reads a URL, HOST:PORT or HOST.
func addressOf(text string) (netip.Addr, bool) {
	host := strings.TrimSpace(text)
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		host = u.Host
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return a, err == nil
}
