package probe

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

func kinds() []TargetKind { return []TargetKind{HTTP, TCP, UDP, Stream, DNS, API, APIKept} }

func kindNames() string {
	var names []string
	for _, kind := range kinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

func (t Target) validate() error {
	switch {
	case t.Name == "":
		return errors.New("name is empty")
	case !slices.Contains(kinds(), t.Kind):
		return fmt.Errorf("kind %q is not one of %s", t.Kind, kindNames())
	case !(t.Rate > 0 && t.Rate <= maxRate): // NaN is neither
		return fmt.Errorf("rate %v is not between 0 and %d requests per second", t.Rate, maxRate)
	case t.Timeout < 0:
		return fmt.Errorf("timeout %v is negative", time.Duration(t.Timeout))
	case t.MaxInFlight < 0:
		return fmt.Errorf("maxInFlight %d is negative", t.MaxInFlight)
	}
	if err := t.validateKind(); err != nil {
		return err
	}
	if err := t.validateAddresses(); err != nil {
		return err
	}
	return t.validateIdentity()
}

// validateKind refuses fields without effect: the user means something else.
func (t Target) validateKind() error {
	overHTTP := t.Kind == HTTP || t.isAPI()
	if t.ExpectStatus != 0 && !overHTTP {
		return fmt.Errorf("expectStatus cannot be checked by a probe of kind %s", t.Kind)
	}
	if t.ExpectStatus != 0 && (t.ExpectStatus < 100 || t.ExpectStatus > 599) {
		return fmt.Errorf("expectStatus %d is not between 100 and 599", t.ExpectStatus)
	}
	if t.Path != "" && !overHTTP {
		return fmt.Errorf("path is not for a probe of kind %s", t.Kind)
	}
	if t.Kind == HTTP {
		if at, err := url.Parse(t.url()); err != nil || !strings.HasPrefix(t.Path, "/") || at.Fragment != "" {
			return fmt.Errorf("path %q is not one that can be asked for", t.Path)
		}
	}
	return cmp.Or(t.validateHost(), t.validateTrust())
}

func (t Target) validateHost() error {
	if t.Host != "" && (t.Kind != HTTP || strings.ContainsAny(t.Host, " /@\r\n")) {
		return fmt.Errorf("host %q is not one that a probe of kind %s can ask for", t.Host, t.Kind)
	}
	return nil
}

func (t Target) validateTrust() error {
	switch {
	case t.TokenFile != "" && !t.isAPI():
		return fmt.Errorf("tokenFile is for kinds %s and %s", API, APIKept)
	case t.TLS && t.Kind != HTTP:
		return fmt.Errorf("tls is for kind %s", HTTP)
	case t.InsecureSkipVerify && !t.TLS:
		return fmt.Errorf("insecureSkipVerify is for kind %s with tls", HTTP)
	case t.InsecureSkipVerify && t.CAFile != "":
		return errors.New("insecureSkipVerify and caFile exclude each other")
	case t.CAFile != "" && !t.TLS && !t.isAPI():
		return fmt.Errorf("caFile is for kinds %s and %s, and %s with tls", API, APIKept, HTTP)
	}
	return nil
}

func (t Target) validateAddresses() error {
	if t.Kind == DNS {
		if t.Address == "" || strings.ContainsAny(t.Address, ":/@ ") {
			return fmt.Errorf("address %q is not a name to look up", t.Address)
		}
	} else if host, port, err := net.SplitHostPort(t.Address); err != nil || host == "" || port == "" {
		return fmt.Errorf("address %q is not host:port", t.Address)
	}
	if t.Resolver != "" {
		if _, err := netip.ParseAddrPort(t.Resolver); err != nil {
			return fmt.Errorf("resolver %q is not IP:port", t.Resolver)
		}
	}
	return nil
}

func (t Target) validateIdentity() error {
	if t.expectsIdentity() && t.Kind != HTTP && t.Kind != Stream {
		return fmt.Errorf("expectClientAddress and expectServer cannot be checked by a probe of kind %s", t.Kind)
	}
	if t.ExpectClientAddress == "" {
		return nil
	}
	for text := range strings.SplitSeq(t.ExpectClientAddress, ",") {
		if _, err := netip.ParseAddr(text); err == nil {
			continue
		}
		return fmt.Errorf("expectClientAddress %q is not an IP address (%q needs the prober's own address to be known)",
			t.ExpectClientAddress, Self)
	}
	return nil
}
