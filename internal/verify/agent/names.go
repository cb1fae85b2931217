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

// NameServerOf is the first name server in a pod's resolv.conf; invalid without one.
func NameServerOf(resolvConf string) netip.Addr {
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil || len(config.Servers) == 0 {
		return netip.Addr{}
	}
	return parse(config.Servers[0])
}

// nameServers choose the agent's name server. Like older pods, it asks at the address in its
// resolv.conf while that must answer, and then, like new pods, at the Service's address.
type nameServers struct {
	// first is resolv.conf's. One that is no Service, such as a node's cache, stays.
	first netip.Addr

	mu sync.Mutex
	// service is the one at that address; known from when it was first seen.
	service types.NamespacedName
	now     netip.AddrPort
}

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

// find is the Service whose past, present or future address is in resolv.conf. Only notes in
// kube-system are believed: a tenant could redirect all agents.
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
