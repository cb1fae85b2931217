package dnsrecords

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Find returns the servers of the zone that a name is in, as recursive servers know them.
func (c *Client) Find(ctx context.Context, name string) ([]NameServer, error) {
	zone, err := c.zone(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := c.recurse(ctx, zone, dns.TypeNS)
	if err != nil {
		return nil, fmt.Errorf("finding the name servers of %s: %w", zone, err)
	}
	return c.Locate(ctx, nameServers(zone, r.Answer))
}

// zone is the nearest one above a name. A SOA elsewhere belongs to an alias' target.
func (c *Client) zone(ctx context.Context, name string) (string, error) {
	for _, at := range dns.Split(dns.CanonicalName(name)) {
		above := dns.CanonicalName(name)[at:]
		r, err := c.recurse(ctx, above, dns.TypeSOA)
		if err != nil {
			return "", fmt.Errorf("finding the zone of %s: %w", name, err)
		}
		for _, rr := range slices.Concat(r.Answer, r.Ns) {
			owner := dns.CanonicalName(rr.Header().Name)
			if rr.Header().Rrtype == dns.TypeSOA && owner != "." && dns.IsSubDomain(owner, above) {
				return owner, nil
			}
		}
	}
	return "", fmt.Errorf("finding the zone of %s: no server knows one", name)
}

func (c *Client) Locate(ctx context.Context, hosts []string) ([]NameServer, error) {
	var all []NameServer
	for _, host := range hosts {
		before := len(all)
		for _, rrtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			r, err := c.recurse(ctx, host, rrtype)
			if err != nil {
				return nil, fmt.Errorf("finding the addresses of name server %s: %w", host, err)
			}
			for _, a := range addresses(r.Answer) {
				all = append(all, c.at(host, a))
			}
		}
		if len(all) == before {
			return nil, fmt.Errorf("name server %s has no address", host)
		}
	}
	return all, nil
}

// Leads are all addresses of a name, by its own and by recursive servers: AWS' load balancers
// answer with some at a time.
func (c *Client) Leads(ctx context.Context, name string, typ v1alpha1.RecordType, resolvers []string) ([]string, error) {
	r, err := c.recurse(ctx, name, rrtype(typ))
	if err != nil {
		return nil, fmt.Errorf("finding the addresses of %s: %w", name, err)
	}
	all := addresses(r.Answer)
	for _, resolver := range resolvers {
		if r, err := c.query(ctx, resolver, name, rrtype(typ), true); err == nil {
			all = append(all, addresses(r.Answer)...)
		}
	}
	servers, err := c.Find(ctx, name)
	if err == nil { // else the recursive ones have to do
		for _, a := range c.Ask(ctx, servers, name, typ) {
			all = append(all, a.Set.Values...)
		}
	}
	if all = both(all, nil); len(all) == 0 {
		return nil, fmt.Errorf("%s has no address, and nothing can lead there", Title(name, typ))
	}
	return all, nil
}

func (c *Client) recurse(ctx context.Context, name string, rrtype uint16) (*dns.Msg, error) {
	servers, err := c.recursive()
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		var r *dns.Msg
		if r, err = c.query(ctx, s, name, rrtype, true); err == nil {
			return r, nil
		}
		err = fmt.Errorf("resolver %s: %w", s, err)
	}
	return nil, err
}

func (c *Client) recursive() ([]string, error) {
	if len(c.Recursive) > 0 {
		return c.Recursive, nil
	}
	conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("reading which resolvers to ask: %w", err)
	}
	var all []string
	for _, s := range conf.Servers {
		all = append(all, net.JoinHostPort(s, conf.Port))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no resolver to ask: /etc/resolv.conf names none")
	}
	return all, nil
}

func nameServers(zone string, answer []dns.RR) []string {
	var hosts []string
	for _, rr := range answer {
		if ns, ok := rr.(*dns.NS); ok && dns.CanonicalName(ns.Hdr.Name) == dns.CanonicalName(zone) {
			hosts = append(hosts, dns.CanonicalName(ns.Ns))
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func addresses(answer []dns.RR) []string {
	var all []string
	for _, rr := range answer {
		switch r := rr.(type) {
		case *dns.A:
			all = append(all, r.A.String())
		case *dns.AAAA:
			all = append(all, aaaa(r))
		}
	}
	return all
}
