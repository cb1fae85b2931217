package certificates

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestCertifiedBy(t *testing.T) {
	aliases := []v1alpha1.HostAlias{{Name: "shop.example.com", Alias: "shop.mirror.example.com"}}
	for name, test := range map[string]struct {
		text string
		// add is what is lacking, names all that there are afterwards; nil if the object has
		// nothing to do with it.
		add, names []string
	}{
		"certificate": {
			`{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: shop, dnsNames: [shop.example.com]}}`,
			[]string{"shop.mirror.example.com"},
			[]string{"shop.example.com", "shop.mirror.example.com"},
		},
		"has it": {
			`{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: shop, dnsNames: [shop.example.com, shop.mirror.example.com]}}`,
			nil,
			[]string{"shop.example.com", "shop.mirror.example.com"},
		},
		"wildcard": {
			`{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: shop, dnsNames: [shop.example.com, "*.mirror.example.com"]}}`,
			nil, nil,
		},
		"other name": {`{apiVersion: cert-manager.io/v1, kind: Certificate, spec: {secretName: shop, dnsNames: [blog.example.com]}}`, nil, nil},
		"of an Ingress": {`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {ownerReferences: [{kind: Ingress, name: shop, controller: true}]},
			spec: {secretName: shop, dnsNames: [shop.example.com]}}`, nil, nil},
		"Ingress": {
			`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {annotations: {cert-manager.io/cluster-issuer: ca}},
			spec: {tls: [{hosts: [blog.example.com], secretName: blog}, {hosts: [shop.example.com], secretName: shop}]}}`,
			[]string{"shop.mirror.example.com"},
			[]string{"blog.example.com", "shop.example.com", "shop.mirror.example.com"},
		},
		"Ingress without an issuer": {`{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {tls: [{hosts: [shop.example.com], secretName: shop}]}}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(t, test.text)
			before := namesOf(o)
			c := Of(o, aliases)
			if (c == nil) != (test.names == nil) {
				t.Fatalf("it is %+v", c)
			}
			if c == nil {
				return
			}
			if !slices.Equal(c.Add, test.add) {
				t.Errorf("it lacks %v, want %v", c.Add, test.add)
			}
			if withAliases(o, aliases) != (len(test.add) > 0) || !slices.Equal(namesOf(o), test.names) {
				t.Errorf("it has %v, want %v", namesOf(o), test.names)
			}
			withoutNames(o, test.add)
			if !slices.Equal(namesOf(o), before) {
				t.Errorf("afterwards it has %v, had %v", namesOf(o), before)
			}
		})
	}
}
