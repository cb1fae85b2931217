package references

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestPolicies: what names old addresses alone is found, and what names new ones beside them is
// covered.
func TestPolicies(t *testing.T) {
	s, err := New([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, spec, want string }{
		{"old alone", "ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}]}]", "10.1.0.0/16"},
		{"one of old", "ingress: [{from: [{ipBlock: {cidr: 10.1.3.4/32}}]}]", "10.1.3.4/32"},
		{"new beside old", "ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}, {ipBlock: {cidr: 10.2.0.0/16}}]}]", "10.1.0.0/16+ 10.2.0.0/16+"},
		{"in another rule", "ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}]}, {from: [{ipBlock: {cidr: 10.2.0.0/16}}]}]", "10.1.0.0/16+ 10.2.0.0/16+"},
		{
			"of other ports", "ingress: [{ports: [{port: 80}], from: [{ipBlock: {cidr: 10.1.0.0/16}}]}, {from: [{ipBlock: {cidr: 10.2.0.0/16}}]}]",
			"10.1.0.0/16 10.2.0.0/16",
		},
		{"in the other direction", "ingress: [{from: [{ipBlock: {cidr: 10.1.0.0/16}}]}], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]", "10.1.0.0/16"},
		{"both", "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]", ""},
		{"all but old", "egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.1.0.0/16]}}]}]", "0.0.0.0/0 10.1.0.0/16"},
		{"others", "egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}]", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
			if err := yaml.UnmarshalStrict([]byte("{"+tt.spec+"}"), &p.Spec); err != nil {
				t.Fatal(err)
			}
			if got := valuesOf(s.Find(p)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func valuesOf(all []Reference) string {
	var out []string
	for _, r := range all {
		value := r.Value
		if r.Covered {
			value += "+"
		}
		out = append(out, value)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestCalicoPolicies(t *testing.T) {
	s, err := New([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for nets, want := range map[string]string{
		"[10.1.0.0/16]": "10.1.0.0/16", "[10.1.0.0/16, 10.2.0.0/16]": "", "[10.0.0.0/8]": "", "[192.0.2.0/24]": "",
	} {
		for _, field := range []string{"nets", "notNets"} {
			o := &unstructured.Unstructured{}
			text := fmt.Sprintf(
				"{kind: GlobalNetworkPolicy, metadata: {name: p}, spec: {ingress: [{action: Allow, source: {%s: %s}}]}}",
				field,
				nets,
			)
			if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
				t.Fatal(err)
			}
			got := s.FindCalico(o)
			if valuesOf(got) != want || want != "" && got[0].Object != "Calico GlobalNetworkPolicy p" {
				t.Errorf("%s %s: %+v, want %q", field, nets, got, want)
			}
		}
	}
}
