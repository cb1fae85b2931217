package dnsrecords

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

const (
	// DefaultTTL is the time to live, in seconds, of a record that moves.
	DefaultTTL = 30
	// DefaultDrain is how long values count as remembered beyond their time to live.
	DefaultDrain = time.Minute

	maxTTL = 3600
)

// Default fills in what a spec leaves open.
func Default(r *v1alpha1.RecordSpec) {
	if r.Type == "" {
		r.Type = v1alpha1.RecordA
	}
	if r.TTL == nil {
		ttl := int32(DefaultTTL)
		r.TTL = &ttl
	}
	if r.Drain == nil {
		r.Drain = &metav1.Duration{Duration: DefaultDrain}
	}
}

// Validate says what is wrong with a defaulted spec, by a *spec.Error. field is where it is, such as spec.nodes.records[0].
func Validate(field string, r *v1alpha1.RecordSpec) error {
	if !hostname(r.Name) {
		return &spec.Error{
			Field: field + ".name", Problem: fmt.Sprintf("%q is not a name in full", r.Name),
			Hint: "write it with its domain, such as api.example.com",
		}
	}
	if types := []v1alpha1.RecordType{v1alpha1.RecordA, v1alpha1.RecordAAAA, v1alpha1.RecordCNAME}; !slices.Contains(types, r.Type) {
		return &spec.Error{
			Field:   field + ".type",
			Problem: fmt.Sprintf("%q is not known", r.Type),
			Hint:    fmt.Sprintf("use one of %v", types),
		}
	}
	if err := validateValues(field+".from", r.Type, r.From, 0); err != nil {
		return err
	}
	if err := validateValues(field+".to", r.Type, r.To, 1); err != nil {
		return err
	}
	if *r.TTL < 1 || *r.TTL > maxTTL {
		return &spec.Error{
			Field: field + ".ttl", Problem: fmt.Sprintf("%d is not within 1 and %d seconds", *r.TTL, maxTTL),
			Hint: fmt.Sprintf("%d is a good one", DefaultTTL),
		}
	}
	if r.Drain.Duration < 0 {
		return &spec.Error{Field: field + ".drain", Problem: "is negative", Hint: "write a duration such as 60s"}
	}
	for i, at := range r.Resolvers {
		if err := validateAddress(fmt.Sprintf("%s.resolvers[%d]", field, i), at); err != nil {
			return err
		}
	}
	return validateProvider(field+".provider", r)
}

func validateValues(field string, typ v1alpha1.RecordType, values []string, least int) error {
	for i, v := range values {
		if _, err := canonical(typ, v); err != nil {
			return &spec.Error{
				Field: fmt.Sprintf("%s[%d]", field, i), Problem: err.Error(),
				Hint: fmt.Sprintf("a record of type %s has %s", typ, map[v1alpha1.RecordType]string{
					v1alpha1.RecordA:     "IPv4 addresses",
					v1alpha1.RecordAAAA:  "IPv6 addresses",
					v1alpha1.RecordCNAME: "a name in full",
				}[typ]),
			}
		}
	}
	switch {
	case len(values) < least:
		return &spec.Error{Field: field, Problem: "is empty", Hint: "write what the record shall have afterwards"}
	case typ == v1alpha1.RecordCNAME && len(values) > 1:
		return &spec.Error{Field: field, Problem: "has more than one value", Hint: "a CNAME has one"}
	}
	return nil
}

func validateAddress(field, at string) error {
	host, port, err := net.SplitHostPort(at)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err == nil && n > 0 && host != "" {
			return nil
		}
	}
	return &spec.Error{Field: field, Problem: fmt.Sprintf("%q is not host:port", at), Hint: "write it such as 10.0.0.53:53"}
}

func validateProvider(field string, r *v1alpha1.RecordSpec) error {
	p := r.Provider
	set := 0
	for _, given := range []bool{p.RFC2136 != nil, p.Route53 != nil, p.Manual != nil} {
		if given {
			set++
		}
	}
	switch {
	case set != 1:
		return &spec.Error{
			Field: field, Problem: "needs exactly one of rfc2136, route53 and manual",
			Hint: "write manual: {} if somebody changes the record by hand",
		}
	case p.RFC2136 != nil:
		return validateDynamic(field+".rfc2136", r.Name, p.RFC2136)
	case p.Route53 != nil && (p.Route53.HostedZoneID == "" || strings.Trim(p.Route53.HostedZoneID, zoneIDCharacters) != ""):
		return &spec.Error{
			Field: field + ".route53.hostedZoneID", Problem: fmt.Sprintf("%q is not the ID of a hosted zone", p.Route53.HostedZoneID),
			Hint: "write it without /hostedzone/, such as Z1D633PJN98FT9",
		}
	}
	return nil
}

const zoneIDCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func validateDynamic(field, name string, p *v1alpha1.RFC2136Provider) error {
	if err := validateAddress(field+".server", p.Server); err != nil {
		return err
	}
	zone := dns.CanonicalName(p.Zone)
	switch {
	case p.Zone == "" || !dns.IsSubDomain(zone, dns.CanonicalName(name)):
		return &spec.Error{
			Field: field + ".zone", Problem: fmt.Sprintf("%q is not a zone that %s is in", p.Zone, name),
			Hint: "write the zone that the server is the primary of",
		}
	case p.TSIGSecret != nil && p.TSIGKeyFile != "":
		return &spec.Error{
			Field: field, Problem: "has both tsigSecret and tsigKeyFile",
			Hint: "use tsigSecret, if the cluster may hold the key, else tsigKeyFile",
		}
	case p.TSIGSecret != nil && (p.TSIGSecret.Namespace == "" || p.TSIGSecret.Name == ""):
		return &spec.Error{Field: field + ".tsigSecret", Problem: "needs namespace and name", Hint: "name an existing Secret"}
	case p.TSIGKeyFile != "" && !filepath.IsAbs(p.TSIGKeyFile):
		return &spec.Error{
			Field: field + ".tsigKeyFile", Problem: fmt.Sprintf("%q depends on where replumb is started", p.TSIGKeyFile),
			Hint: "write the whole path, such as /etc/replumb/tsig.key",
		}
	}
	return nil
}
