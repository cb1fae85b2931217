package apiserver

import (
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/controlplane"
)

// The flags that say where an API server keeps its objects.
const (
	storeFlag     = "etcd-servers"
	overridesFlag = "etcd-servers-overrides"
)

// Events is the usual second etcd, as of kOps (k8s.io/kops nodeup/pkg/model, kube_apiserver.go).
const Events = "/events"

// Stores says in which etcds the API server of a host keeps its objects, by its command line.
type Stores struct {
	// Pod is its pod, as namespace/name.
	Pod string
	// Host is the address of its machine.
	Host netip.Addr
	// Main are the client URLs of the etcd for everything that has none of its own.
	Main []string
	// Others are those of etcds for one resource each, by group/resource: /events, for instance.
	Others map[string][]string
}

// StoresOf reads etcd flags of static API server pods in kube-system.
func StoresOf(pods []corev1.Pod) []Stores {
	var all []Stores
	for i := range pods {
		p := &pods[i]
		if !controlplane.APIServer.IsStatic(p) {
			continue
		}
		servers, found := commandFlag(p, storeFlag)
		if !found {
			continue
		}
		s := Stores{Pod: p.Namespace + "/" + p.Name, Main: split(servers, ","), Others: map[string][]string{}}
		if host, err := netip.ParseAddr(p.Status.HostIP); err == nil {
			s.Host = host.Unmap()
		}
		overrides, _ := commandFlag(p, overridesFlag)
		for _, one := range split(overrides, ",") { // group/resource#server;server
			if resource, urls, ok := strings.Cut(one, "#"); ok {
				s.Others[resource] = split(urls, ";")
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stores) int { return strings.Compare(a.Pod, b.Pod) })
	return all
}

func split(text, by string) []string {
	return slices.DeleteFunc(strings.Split(text, by), func(s string) bool { return strings.TrimSpace(s) == "" })
}

func (s *Stores) Resources() []string { return slices.Sorted(maps.Keys(s.Others)) }

// Beside reports whether a client URL is of a machine with an API server: this one, also as
// localhost, or one of hosts.
func (s *Stores) Beside(urls []string, hosts ...netip.Addr) bool {
	return slices.ContainsFunc(urls, func(text string) bool {
		u, err := url.Parse(text)
		if err != nil {
			return false
		}
		name := u.Hostname()
		if name == "localhost" {
			return true
		}
		a, err := netip.ParseAddr(name)
		if err != nil {
			return false
		}
		return a.IsLoopback() || a.Unmap() == s.Host || slices.Contains(hosts, a.Unmap())
	})
}
