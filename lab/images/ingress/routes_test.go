package main

import (
	"crypto/tls"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func path(kind networkingv1.PathType, path, service string) networkingv1.HTTPIngressPath {
	return networkingv1.HTTPIngressPath{Path: path, PathType: ptr.To(kind), Backend: *to(service)}
}

func to(service string) *networkingv1.IngressBackend {
	return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: service, Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
}

func ruleFor(host string, paths ...networkingv1.HTTPIngressPath) networkingv1.IngressRule {
	return networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths},
	}}
}

// ingressOf the age given, in hours.
func ingressOf(namespace, name string, age int, spec networkingv1.IngressSpec) *networkingv1.Ingress {
	return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(-time.Duration(age) * time.Hour)),
	}, Spec: spec}
}

func examples() []*networkingv1.Ingress {
	const prefix, exact, any = networkingv1.PathTypePrefix, networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific
	return []*networkingv1.Ingress{
		ingressOf("other", "late", 1, networkingv1.IngressSpec{
			Rules: []networkingv1.IngressRule{ruleFor("shop.example", path(prefix, "/", "thief"))},
			TLS:   []networkingv1.IngressTLS{{Hosts: []string{"shop.example", "late.example"}, SecretName: "late"}},
		}),
		ingressOf("shop", "front", 2, networkingv1.IngressSpec{
			Rules: []networkingv1.IngressRule{
				ruleFor("Shop.example", path(prefix, "/", "front"), path(prefix, "/cart/", "cart"), path(exact, "/cart", "exact"),
					path(prefix, "/cart/items", "items")),
				ruleFor("*.shop.example", path(any, "", "tenants")),
			},
			TLS: []networkingv1.IngressTLS{
				{Hosts: []string{"shop.example"}, SecretName: "front"},
				{Hosts: []string{"*.shop.example"}, SecretName: "tenants"},
				{Hosts: []string{"gone.example"}, SecretName: "gone"},
			},
		}),
		ingressOf(
			"shop",
			"api",
			2,
			networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{ruleFor("api.example", path(prefix, "/v1", "api"))}},
		),
	}
}

func TestRoute(t *testing.T) {
	table := newTable(examples(), func(string, string) *tls.Certificate { return nil })
	for _, tt := range []struct{ host, path, service string }{
		{"shop.example", "/", "front"},
		{"SHOP.example:443", "/anything", "front"},
		{"shop.example.", "/cartoon", "front"},
		{"shop.example", "/cart", "exact"},
		{"shop.example", "/cart/", "cart"},
		{"shop.example", "/cart/items", "items"},
		{"shop.example", "/cart/items/7", "items"},
		{"shop.example", "/cart/itemsize", "cart"},
		{"blue.shop.example", "/x", "tenants"},
		{"deep.blue.shop.example", "/x", ""},
		{"api.example", "/v1/x", "api"},
		{"api.example", "/v2", ""},
		{"unknown.example", "/", ""},
		{"10.0.0.1:8080", "/healthz", ""},
		{"[fd00::1]:8080", "/", ""},
		{"", "/", ""},
	} {
		got := ""
		if b := table.route(tt.host, tt.path); b != nil {
			got = b.service
		}
		if got != tt.service {
			t.Errorf("%s%s goes to %q, want %q", tt.host, tt.path, got, tt.service)
		}
	}
	for host, want := range map[string]bool{"api.example": true, "x.shop.example": true, "unknown.example": false, "10.0.0.1": false} {
		if got := table.knows(host); got != want {
			t.Errorf("that %s is known is %v", host, got)
		}
	}
}

func TestRouteOfAnyHost(t *testing.T) {
	all := append(examples(),
		ingressOf("shop", "any", 5, networkingv1.IngressSpec{
			DefaultBackend: to(
				"otherwise",
			),
			Rules: []networkingv1.IngressRule{ruleFor("", path(networkingv1.PathTypePrefix, "/all", "all"))},
		}),
		ingressOf("shop", "too-late", 0, networkingv1.IngressSpec{DefaultBackend: to("too-late")}))
	table := newTable(all, func(string, string) *tls.Certificate { return nil })
	for request, want := range map[[2]string]string{
		{"api.example", "/all"}: "all", {"api.example", "/v2"}: "otherwise", {"unknown.example", "/x"}: "otherwise", {"shop.example", "/all"}: "front",
	} {
		if b := table.route(request[0], request[1]); b == nil || b.service != want {
			t.Errorf("%v goes to %v, want %s", request, b, want)
		}
	}
	if table.knows("unknown.example") {
		t.Error("a rule for any host names one")
	}
}

func TestCertificate(t *testing.T) {
	certificates := map[string]*tls.Certificate{}
	for _, name := range []string{"other/late", "shop/front", "shop/tenants"} {
		certificates[name] = &tls.Certificate{Certificate: [][]byte{[]byte(name)}}
	}
	table := newTable(examples(), func(namespace, name string) *tls.Certificate { return certificates[namespace+"/"+name] })
	for host, want := range map[string]string{
		"shop.example": "shop/front", "SHOP.example": "shop/front", "blue.shop.example": "shop/tenants", "late.example": "other/late",
		"gone.example": "", "api.example": "", "": "",
	} {
		got := ""
		if c := table.certificate(host); c != nil {
			got = string(c.Certificate[0])
		}
		if got != want {
			t.Errorf("%s is served with %q, want %q", host, got, want)
		}
	}
}
