package agent

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

const portDNS = 53

// NameServerOf is the first name server that kubelet has written in a pod's resolv.conf; invalid if there is none.
func NameServerOf(resolvConf string) netip.Addr {
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil || len(config.Servers) == 0 {
		return netip.Addr{}
	}
	return parse(config.Servers[0])
}

// nameServers say where an agent looks names up. A pod has the address of cluster DNS from its start, and an agent outlasts moves of that
// Service: it asks at the address of its resolv.conf for as long as something is bound to answer there, as any pod of before does, and then
// where the Service is, as a pod does that starts then.
type nameServers struct {
	// first is the name server of resolv.conf. One that is no Service, such as a cache on the node, is asked forever.
	first netip.Addr

	mu sync.Mutex
	// service is the one at that address; known from when it was first seen.
	service types.NamespacedName
	now     netip.AddrPort
}

// server is whom to ask now; invalid for the one of resolv.conf.
func (n *nameServers) server(s view) netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.migration == nil {
		return n.now
	}
	svc := n.find(s)
	if svc == nil {
		return n.now
	}
	at := clusterIP(svc)
	old, _ := before(s.migration, svc)
	switch {
	case n.first == at, n.first == old && !s.migration.Status.PointOfNoReturnPassed:
		n.now = netip.AddrPort{}
	case at.IsValid(): // in the middle of a hop it stays
		n.now = netip.AddrPortFrom(at, portDNS)
	}
	return n.now
}

// find finds the Service that is, was or will be at the address of resolv.conf. What Services outside of kube-system note of
// themselves is not believed: a tenant could have all agents ask a server of his own.
func (n *nameServers) find(s view) *corev1.Service {
	var noted *corev1.Service
	for _, svc := range s.services {
		switch key := client.ObjectKeyFromObject(svc); {
		case n.service == key:
			return svc
		case n.service.Name != "" || !n.first.IsValid():
		case clusterIP(svc) == n.first:
			n.service = key
			return svc
		case svc.Namespace == metav1.NamespaceSystem && notes(s.migration, svc, n.first):
			noted = svc
		}
	}
	if noted != nil {
		n.service = client.ObjectKeyFromObject(noted)
	}
	return noted
}

// notes reports whether a Service says that the migration has it leave an address, or come to it.
func notes(m *v1alpha1.Migration, svc *corev1.Service, a netip.Addr) bool {
	old, touched := before(m, svc)
	return touched && (old == a || parse(svc.Annotations[v1alpha1.AnnotationTargetIP]) == a)
}

func lookUp(ctx context.Context, server netip.AddrPort, name string) error {
	resolver := &net.Resolver{PreferGo: true}
	if server.IsValid() {
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.String())
		}
	}
	_, err := resolver.LookupNetIP(ctx, "ip", name)
	return err
}
