package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ParseTarget reads http://host:port/path, https://host/path, tcp://host:port, udp://host:port,
// stream://host:port, dns://name or dns://name@server:port. The text is the target's name;
// Config.Resolve fills in the rest.
func ParseTarget(text string) (Target, error) {
	target, err := parseTarget(text)
	if err != nil {
		return Target{}, fmt.Errorf("target %q: %w", text, err)
	}
	target.Name = text
	return target, nil
}

func parseTarget(text string) (Target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return Target{}, errors.New("no scheme such as http:// or tcp://")
	}
	switch scheme {
	case "http", "https":
		return parseURL(text)
	case "tcp", "udp", "stream":
		address, err := parseHostPort(rest)
		return Target{Kind: TargetKind(scheme), Address: address}, err
	case "dns":
		return parseName(rest)
	}
	return Target{}, fmt.Errorf("scheme %q is not one of http, https, tcp, udp, stream, dns", scheme)
}

func parseURL(text string) (Target, error) {
	at, err := url.Parse(text)
	if err != nil {
		return Target{}, errors.Unwrap(err)
	}
	switch {
	case at.User != nil:
		return Target{}, errors.New("names a user: requests carry no credentials")
	case at.Fragment != "":
		return Target{}, errors.New("has a fragment, which no server is sent")
	}
	target := Target{Kind: HTTP, TLS: at.Scheme == "https"}
	port := at.Port()
	if port == "" {
		port = "80"
		if target.TLS {
			port = "443"
		}
	}
	target.Address, err = parseHostPort(net.JoinHostPort(at.Hostname(), port))
	target.Path = at.RequestURI()
	return target, err
}

func parseHostPort(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "/@? ") {
		return "", errors.New("is not host:port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not between 1 and 65535", port)
	}
	return text, nil
}

// parseName reads name@server:port, with port 53 and the system's servers as defaults.
func parseName(text string) (Target, error) {
	name, server, given := strings.Cut(text, "@")
	target := Target{Kind: DNS, Address: name}
	if err := target.validateAddresses(); err != nil {
		return Target{}, fmt.Errorf("%q is not a name to look up", name)
	}
	if !given {
		return target, nil
	}
	const port = 53
	if addr, err := netip.ParseAddr(strings.Trim(server, "[]")); err == nil {
		target.Resolver = netip.AddrPortFrom(addr, port).String()
		return target, nil
	}
	at, err := netip.ParseAddrPort(server)
	if err != nil || at.Port() == 0 {
		return Target{}, fmt.Errorf("server %q is not an IP address, or IP:port", server)
	}
	target.Resolver = at.String()
	return target, nil
}
