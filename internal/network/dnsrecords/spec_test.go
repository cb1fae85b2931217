package dnsrecords

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// validate looks at a record as that of a move of nodes.
func validate(r *v1alpha1.RecordSpec) field.ErrorList {
	m := &v1alpha1.Migration{}
	m.APIVersion, m.Kind, m.Name = v1alpha1.GroupVersion.String(), "Migration", "m"
	nodes := v1alpha1.NodeSet{CIDRs: []string{"10.1.0.0/16"}}
	m.Spec.Nodes = &v1alpha1.NodesSpec{
		Old:     nodes,
		New:     v1alpha1.NodeSet{CIDRs: []string{"10.2.0.0/16"}},
		Records: []v1alpha1.RecordSpec{*r},
	}
	spec.Default(m)
	const path = "spec.nodes.records[0]"
	bad := append(spec.Validate(m, nil), ValidateZone(path, &m.Spec.Nodes.Records[0])...)
	return append(bad, ValidateAliases(path, &m.Spec.Nodes.Records[0])...)
}

func TestValidate(t *testing.T) {
	dynamic := func(change func(p *v1alpha1.RFC2136Provider)) func(r *v1alpha1.RecordSpec) {
		return func(r *v1alpha1.RecordSpec) {
			p := &v1alpha1.RFC2136Provider{Server: "192.0.2.53:53", Zone: "example.com"}
			change(p)
			r.Provider = v1alpha1.RecordProvider{RFC2136: p}
		}
	}
	route53 := func(change func(r *v1alpha1.RecordSpec)) func(r *v1alpha1.RecordSpec) {
		return func(r *v1alpha1.RecordSpec) {
			r.Provider = v1alpha1.RecordProvider{Route53: &v1alpha1.Route53Provider{HostedZoneID: "Z1"}}
			change(r)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(r *v1alpha1.RecordSpec)
		field  string
	}{
		{"as little as possible", func(*v1alpha1.RecordSpec) {}, ""},
		{"one label", func(r *v1alpha1.RecordSpec) { r.Name = "api" }, "r.name"},
		{"a wildcard", func(r *v1alpha1.RecordSpec) { r.Name = "*.example.com" }, "r.name"},
		{"another type", func(r *v1alpha1.RecordSpec) { r.Type = "TXT" }, "r.type"},
		{"no values", func(r *v1alpha1.RecordSpec) { r.To = nil }, "r.to"},
		{"a name for an address", func(r *v1alpha1.RecordSpec) { r.To = []string{"192.0.2.1", "lb.example.com"} }, "r.to"},
		{"from is empty", func(r *v1alpha1.RecordSpec) { r.From = []string{} }, ""},
		{"from of another family", func(r *v1alpha1.RecordSpec) { r.From = []string{"2001:db8::1"} }, "r.from"},
		{"an alias", func(r *v1alpha1.RecordSpec) {
			r.Type, r.To = v1alpha1.RecordCNAME, []string{"lb.example.net"}
		}, ""},
		{"an alias of Route 53", route53(func(r *v1alpha1.RecordSpec) { r.From, r.To = []string{oldAlias}, []string{newAlias} }), ""},
		{"one in its own zone", route53(func(r *v1alpha1.RecordSpec) { r.To = []string{"ALIAS Z1 lb.example.com"} }), "r.to[0]"},
		{"one of no zone", route53(func(r *v1alpha1.RecordSpec) { r.To = []string{"ALIAS z1 lb.example.com"} }), "r.to[0]"},
		{"one beside an address", route53(func(r *v1alpha1.RecordSpec) { r.To = []string{newAlias, "192.0.2.1"} }), "r.to"},
		{"one at the beginning, beside an address", route53(func(r *v1alpha1.RecordSpec) { r.From = []string{oldAlias, "192.0.2.1"} }), "r.from"},
		{"one where there are none", func(r *v1alpha1.RecordSpec) { r.To = []string{newAlias} }, "r.to[0]"},
		{"a type that changes", func(r *v1alpha1.RecordSpec) {
			r.FromType, r.From = v1alpha1.RecordCNAME, []string{"lb.example.net"}
		}, ""},
		{"a type that becomes CNAME", func(r *v1alpha1.RecordSpec) {
			r.FromType, r.Type, r.To = v1alpha1.RecordAAAA, v1alpha1.RecordCNAME, []string{"lb.example.net"}
			r.From = []string{"2001:db8::1", "2001:db8::2"}
		}, ""},
		{"a type that changes, of other values", func(r *v1alpha1.RecordSpec) {
			r.FromType, r.Type, r.To = v1alpha1.RecordA, v1alpha1.RecordCNAME, []string{"lb.example.net"}
			r.From = []string{"2001:db8::1"}
		}, "r.from"},
		{"a type that changes, of two names", func(r *v1alpha1.RecordSpec) {
			r.FromType, r.From = v1alpha1.RecordCNAME, []string{"a.example.net", "b.example.net"}
		}, "r.from"},
		{"a type that changes, of nothing", func(r *v1alpha1.RecordSpec) {
			r.FromType, r.From = v1alpha1.RecordCNAME, []string{}
		}, "r.from"},
		{"types that can stand side by side", func(r *v1alpha1.RecordSpec) { r.FromType = v1alpha1.RecordAAAA }, "r.fromType"},
		{"two aliases", func(r *v1alpha1.RecordSpec) {
			r.Type, r.To = v1alpha1.RecordCNAME, []string{"a.example.net", "b.example.net"}
		}, "r.to"},
		{"no time to live", func(r *v1alpha1.RecordSpec) { r.TTL = ptr.To(int32(0)) }, "r.ttl"},
		{"a long one", func(r *v1alpha1.RecordSpec) { r.TTL = ptr.To(int32(86400)) }, "r.ttl"},
		{"negative", func(r *v1alpha1.RecordSpec) { r.Drain = &metav1.Duration{Duration: -time.Second} }, "r.drain"},
		{"resolver without port", func(r *v1alpha1.RecordSpec) { r.Resolvers = []string{"192.0.2.1:53", "192.0.2.2"} }, "r.resolvers[1]"},
		{"port without resolver", func(r *v1alpha1.RecordSpec) { r.Resolvers = []string{":53"} }, "r.resolvers[0]"},
		{"no provider", func(r *v1alpha1.RecordSpec) { r.Provider = v1alpha1.RecordProvider{} }, "r.provider"},
		{"two providers", func(r *v1alpha1.RecordSpec) { r.Provider.Route53 = &v1alpha1.Route53Provider{HostedZoneID: "Z1"} }, "r.provider"},
		{"Route 53", func(r *v1alpha1.RecordSpec) {
			r.Provider = v1alpha1.RecordProvider{Route53: &v1alpha1.Route53Provider{HostedZoneID: "Z1"}}
		}, ""},
		{"Route 53, with its path", func(r *v1alpha1.RecordSpec) {
			r.Provider = v1alpha1.RecordProvider{Route53: &v1alpha1.Route53Provider{HostedZoneID: "/hostedzone/Z1"}}
		}, "r.provider.route53.hostedZoneID"},
		{"updates", dynamic(func(*v1alpha1.RFC2136Provider) {}), ""},
		{"updates, no port", dynamic(func(p *v1alpha1.RFC2136Provider) { p.Server = "ns1.example.com" }), "r.provider.rfc2136.server"},
		{"updates, another zone", dynamic(func(p *v1alpha1.RFC2136Provider) { p.Zone = "ample.com" }), "r.provider.rfc2136.zone"},
		{"updates, no zone", dynamic(func(p *v1alpha1.RFC2136Provider) { p.Zone = "" }), "r.provider.rfc2136.zone"},
		{"updates, two keys", dynamic(func(p *v1alpha1.RFC2136Provider) {
			p.TSIGSecret, p.TSIGKeyFile = &v1alpha1.SecretReference{Namespace: "a", Name: "b"}, "/a"
		}), "r.provider.rfc2136"},
		{"updates, half a Secret", dynamic(func(p *v1alpha1.RFC2136Provider) {
			p.TSIGSecret = &v1alpha1.SecretReference{Name: "b"}
		}), "r.provider.rfc2136.tsigSecret.namespace"},
		{"updates, key from here", dynamic(func(p *v1alpha1.RFC2136Provider) { p.TSIGKeyFile = "tsig.key" }), "r.provider.rfc2136.tsigKeyFile"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &v1alpha1.RecordSpec{
				Name: "api.example.com", To: []string{"192.0.2.1"}, Provider: v1alpha1.RecordProvider{Manual: &v1alpha1.ManualProvider{}},
			}
			tt.change(r)
			err := spec.Refuse(validate(r))
			field := "spec.nodes.records[0]" + strings.TrimPrefix(tt.field, "r")
			named := slices.ContainsFunc(errorsOf(err), func(e *spec.Error) bool { return e.Field == field && e.Hint != "" })
			if tt.field == "" && err != nil || tt.field != "" && !named {
				t.Errorf("got %v", err)
			}
		})
	}
}

// errorsOf are all that is wrong.
func errorsOf(err error) []*spec.Error {
	var one *spec.Error
	var many *spec.Invalid
	switch {
	case errors.As(err, &many):
		return many.Errors
	case errors.As(err, &one):
		return []*spec.Error{one}
	}
	return nil
}

// TestEmptyFromIsKept: that a record may be created must survive being written down, and must not
// come about by it.
func TestEmptyFromIsKept(t *testing.T) {
	for text, empty := range map[string]bool{`{"name":"a.b","from":[]}`: true, `{"name":"a.b"}`: false} {
		r := &v1alpha1.RecordSpec{}
		if err := json.Unmarshal([]byte(text), r); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(r.DeepCopy())
		if err != nil || strings.Contains(string(out), `"from":[]`) != empty {
			t.Errorf("%s became %s (%v)", text, out, err)
		}
	}
}

// TestThenIsValidated looks at records as those of the API.
func TestThenIsValidated(t *testing.T) {
	const a, aaaa, name = v1alpha1.RecordA, v1alpha1.RecordAAAA, v1alpha1.RecordCNAME
	then := func(typ v1alpha1.RecordType, to ...string) v1alpha1.RecordSpec {
		return v1alpha1.RecordSpec{To: []string{"192.0.2.1"}, Then: &v1alpha1.RecordEnd{Type: typ, To: to}}
	}
	with := func(r v1alpha1.RecordSpec, change func(r *v1alpha1.RecordSpec)) v1alpha1.RecordSpec {
		change(&r)
		return r
	}
	route53 := func(r *v1alpha1.RecordSpec) {
		r.Provider = v1alpha1.RecordProvider{Route53: &v1alpha1.Route53Provider{HostedZoneID: "Z1"}}
	}
	from := func(typ v1alpha1.RecordType, values ...string) func(r *v1alpha1.RecordSpec) {
		return func(r *v1alpha1.RecordSpec) { r.FromType, r.From = typ, append([]string{}, values...) }
	}
	for _, tt := range []struct {
		name   string
		record v1alpha1.RecordSpec
		field  string
	}{
		{"a name at last", with(then(name, "new.example.net"), from(name, "old.example.net")), ""},
		{"addresses all along", then(a, "192.0.2.2", "192.0.2.3"), ""},
		{"an alias at last", with(then(a, newAlias), route53), ""},
		{"no type", then("", "new.example.net"), ".then.type"},
		{"nothing", then(name), ".then.to"},
		{"two names", then(name, "new.example.net", "other.example.net"), ".then.to"},
		{"an address as a name", then(name, "192.0.2.2"), ".then.to"},
		{"a name as an address", then(a, "new.example.net"), ".then.to"},
		{"an address of the other family", then(aaaa, "2001:db8::1"), ".then.type"},
		{"the other family again", with(then(aaaa, "2001:db8::1"), func(r *v1alpha1.RecordSpec) {
			r.FromType, r.Type, r.To = a, name, []string{"between.example.net"}
		}), ".then.type"},
		{"the wrong family in it", then(a, "2001:db8::1"), ".then.to"},
		{"what it has by to", then(a, "192.0.2.1"), ".then"},
		{"what it had", with(then(name, "old.example.net"), from(name, "old.example.net")), ".from"},
		{"of a record that is not there", with(then(name, "new.example.net"), from(a)), ".from"},
		{"an alias where there are none", then(a, newAlias), ".then.to"},
		{"an alias in its own zone", with(then(a, "ALIAS Z1 lb.example.com"), route53), ".then.to[0]"},
		{"an alias of no zone", with(then(a, "ALIAS z1 lb.example.com"), route53), ".then.to[0]"},
		{"an alias and more", with(then(a, newAlias, "192.0.2.2"), route53), ".then.to"},
	} {
		r := tt.record
		r.Name = "api.example.com"
		if r.Provider.Route53 == nil {
			r.Provider.Manual = &v1alpha1.ManualProvider{}
		}
		err := spec.Refuse(validateAPI(&r))
		named := slices.ContainsFunc(errorsOf(err), func(e *spec.Error) bool {
			return e.Field == "spec.nodes.controlPlane.records[0]"+tt.field && e.Hint != ""
		})
		if tt.field == "" && err != nil || tt.field != "" && !named {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	r := then(name, "new.example.net")
	r.Name, r.Provider.Manual = "www.example.com", &v1alpha1.ManualProvider{}
	err := spec.Refuse(validate(&r))
	if !slices.ContainsFunc(errorsOf(err), func(e *spec.Error) bool { return e.Field == "spec.nodes.records" }) {
		t.Errorf("of a name that is not the API's: %v", err)
	}
}

// validateAPI looks at a record as that of an API.
func validateAPI(r *v1alpha1.RecordSpec) field.ErrorList {
	m := &v1alpha1.Migration{}
	m.APIVersion, m.Kind, m.Name = v1alpha1.GroupVersion.String(), "Migration", "m"
	m.Spec.Nodes = &v1alpha1.NodesSpec{
		Old: v1alpha1.NodeSet{CIDRs: []string{"10.1.0.0/16"}}, New: v1alpha1.NodeSet{CIDRs: []string{"10.2.0.0/16"}},
		ControlPlane: &v1alpha1.ControlPlaneSpec{
			Etcd: v1alpha1.EtcdSpec{
				Endpoints: []string{"https://10.1.0.1:2379"}, CAFile: "/a", CertFile: "/b", KeyFile: "/c", SnapshotUnencrypted: true,
			},
			Records: []v1alpha1.RecordSpec{*r},
		},
	}
	spec.Default(m)
	const path = "spec.nodes.controlPlane.records[0]"
	return append(spec.Validate(m, nil), ValidateAliases(path, &m.Spec.Nodes.ControlPlane.Records[0])...)
}
