package dnsrecords

import (
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// Default completes a record that was put together and is in no Migration as such.
func Default(r *v1alpha1.RecordSpec) {
	if r.Type == "" {
		r.Type = v1alpha1.RecordA
	}
	if r.TTL == nil {
		r.TTL = ptr.To(int32(30))
	}
	if r.Drain == nil {
		r.Drain = &metav1.Duration{Duration: time.Minute}
	}
}

// Validate checks an assembled record; path is where it is from, such as
// spec.mirror.redirect.names[0].
func Validate(path string, r *v1alpha1.RecordSpec) error {
	bad := append(ValidateZone(path, r), ValidateAliases(path, r)...)
	if !hostname(r.Name) {
		bad = append(
			bad,
			spec.Wrongf(path+".name", "write it with its domain, such as api.example.com", "%q is not a name in full", r.Name),
		)
	}
	bad = append(bad, validateValues(path+".from", formerType(r), r.From)...)
	bad = append(bad, validateValues(path+".to", r.Type, r.To)...)
	if len(r.To) == 0 {
		bad = append(bad, spec.Wrong(path+".to", "is empty", "write what the record shall have afterwards"))
	}
	return spec.Refuse(bad)
}

// formerType is the type that a record has before.
func formerType(r *v1alpha1.RecordSpec) v1alpha1.RecordType {
	if r.FromType == "" {
		return r.Type
	}
	return r.FromType
}

func validateValues(path string, typ v1alpha1.RecordType, values []string) (bad field.ErrorList) {
	for i, v := range values {
		if _, err := canonical(typ, v); err != nil {
			bad = append(
				bad,
				spec.Wrong(fmt.Sprintf("%s[%d]", path, i), err.Error(), fmt.Sprintf("write what a record of type %s has", typ)),
			)
		}
	}
	if len(values) > 1 && (typ == v1alpha1.RecordCNAME || slices.ContainsFunc(values, IsAlias)) {
		bad = append(bad, spec.Wrong(path, "has more than one value", "a CNAME has one, and an alias stands alone"))
	}
	return bad
}

// ValidateAliases refuses broken aliases, and those of providers other than Route 53, with the
// reason that a schema rule could not give.
func ValidateAliases(path string, r *v1alpha1.RecordSpec) (bad field.ErrorList) {
	var then []string
	if r.Then != nil {
		then = r.Then.To
	}
	for _, end := range []struct {
		name   string
		values []string
	}{{".from", r.From}, {".to", r.To}, {".then.to", then}} {
		for i, v := range end.values {
			if !IsAlias(v) {
				continue
			}
			at, hint := fmt.Sprintf(
				"%s%s[%d]", path, end.name, i,
			), "write ALIAS, the CanonicalHostedZoneId of the load balancer, and its name"
			switch a, err := ParseAlias(v); {
			case err != nil:
				bad = append(bad, spec.Wrong(at, err.Error(), hint))
			case r.Provider.Route53 == nil:
				bad = append(bad, spec.Wrong(at, "is an alias, which only Route 53 has", "write provider.route53, or addresses"))
			case a.Zone == r.Provider.Route53.HostedZoneID:
				bad = append(bad, spec.Wrong(at, "is an alias of a record in the same hosted zone", "move that record; "+hint))
			}
		}
	}
	return bad
}

// ValidateZone refuses a record outside of its zone, which a schema rule cannot compare.
func ValidateZone(path string, r *v1alpha1.RecordSpec) field.ErrorList {
	p := r.Provider.RFC2136
	if p == nil || dns.IsSubDomain(dns.CanonicalName(p.Zone), dns.CanonicalName(r.Name)) {
		return nil
	}
	return field.ErrorList{spec.Wrongf(
		path+".provider.rfc2136.zone", "write the zone that the server is the primary of", "%q is not a zone that %s is in", p.Zone, r.Name,
	)}
}

// Unsigned warns of a provider whose server takes unsigned updates from anyone; else empty.
func Unsigned(p *v1alpha1.RecordProvider) string {
	if p == nil || p.RFC2136 == nil || p.RFC2136.TSIGSecret != nil || p.RFC2136.TSIGKeyFile != "" {
		return ""
	}
	return fmt.Sprintf("updates of zone %s are sent to %s without a signature", p.RFC2136.Zone, p.RFC2136.Server)
}
