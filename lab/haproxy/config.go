// Package haproxy writes the configuration of the lab's load balancers, and talks to them while they run.
package haproxy

import (
	_ "embed"
	"net/netip"
	"slices"
	"strings"
	"text/template"
)

// Server is one machine that a balancer leads connections to.
type Server struct {
	Name    string
	Address netip.AddrPort
}

// Config is what one haproxy runs with.
type Config struct {
	// Stats is the socket it is asked at what it does, State the file with what the process before it knew of its servers.
	Stats, State string
	// Listen is the port it takes connections on.
	Listen  uint16
	Servers []Server
	// HealthPort is, of an ingress, where kube-proxy tells whether a node has an endpoint of its Service.
	HealthPort uint16
}

// Backends of the two kinds of balancer.
const (
	// ControlPlanes are API servers that say they are ready.
	ControlPlanes = "control-planes"
	// Local are nodes that say they have an endpoint, and Any those whose node port takes connections.
	Local = "local"
	Any   = "any"
)

//go:embed haproxy.cfg
var configTemplate string

// API is the configuration of a balancer before API servers.
func (c Config) API() ([]byte, error) { return c.render("api") }

// Ingress is the configuration of a balancer before the node ports of an ingress.
func (c Config) Ingress() ([]byte, error) { return c.render("ingress") }

func (c Config) render(kind string) ([]byte, error) {
	t, err := template.New("haproxy.cfg").Parse(configTemplate)
	if err != nil {
		return nil, err
	}
	c.Servers = slices.SortedFunc(slices.Values(c.Servers), func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
	var out strings.Builder
	if err := t.ExecuteTemplate(&out, "common", c); err != nil {
		return nil, err
	}
	err = t.ExecuteTemplate(&out, kind, c)
	return []byte(out.String()), err
}
