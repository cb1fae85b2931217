package references

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestSecretsKeepNothing: of a Secret only its name and the key are kept, however the address is
// written.
func TestSecretsKeepNothing(t *testing.T) {
	found := scanner(t).Find(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Data: map[string][]byte{
		"url": []byte("postgres://cart:hunter2@10.96.3.7/cart"), "range": []byte("10.96.0.0/16"), "zone": []byte("96.10.in-addr.arpa"),
		"password": []byte("hunter2"), "other": []byte("10.96.3.70"), "binary": {0xff, 0, 0x31},
	}})
	want := "[{Secret shop/db data[range]  false false} {Secret shop/db data[url]  false false} {Secret shop/db data[zone]  false false}]"
	if got := fmt.Sprint(found); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := found[0].Names(); got != "an old address or range" {
		t.Errorf("named %q", got)
	}
}

func TestTraffic(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "a"}
	annotated := func(all map[string]string) metav1.ObjectMeta {
		m := *meta.DeepCopy()
		m.Annotations = all
		return m
	}
	slice := func(by string) *discoveryv1.EndpointSlice {
		m := *meta.DeepCopy()
		m.Labels = map[string]string{discoveryv1.LabelManagedBy: by, discoveryv1.LabelServiceName: "cart"}
		return &discoveryv1.EndpointSlice{ObjectMeta: m, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.96.3.7"}}}}
	}
	for _, tt := range []struct {
		name string
		o    client.Object
		want string
	}{
		{"its own address", &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: "10.96.3.7", ClusterIPs: []string{"10.96.3.7"}}}, ""},
		{
			"fields", &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
				ExternalIPs: []string{"192.0.2.1", "10.96.3.7"}, LoadBalancerIP: "10.96.3.7", LoadBalancerSourceRanges: []string{"10.96.0.0/16"},
			}},
			"Service shop/a spec.loadBalancerSourceRanges 10.96.0.0/16; Service shop/a spec.externalIPs[1] 10.96.3.7; " +
				"Service shop/a spec.loadBalancerIP 10.96.3.7",
		},
		{
			"source ranges of both", &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
				LoadBalancerSourceRanges: []string{"10.96.0.0/16", "172.24.0.0/16"},
			}}, "",
		},
		{"external name", &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ExternalName: "10.96.3.7"}}, "Service shop/a spec.externalName 10.96.3.7"},
		{
			"while it moves", &corev1.Service{
				ObjectMeta: annotated(map[string]string{v1alpha1.AnnotationOldIP: "10.96.3.7", corev1.LastAppliedConfigAnnotation: "10.96.3.7"}),
				Spec:       corev1.ServiceSpec{ExternalName: "10.96.3.7"},
			}, "",
		},
		{
			"annotations", &corev1.Service{ObjectMeta: annotated(map[string]string{"x/target": "10.96.3.7", "x/ranges": "10.96.0.0/16, 10.0.0.0/24"})},
			"Service shop/a metadata.annotations[x/ranges] 10.96.0.0/16; Service shop/a metadata.annotations[x/target] 10.96.3.7",
		},
		{"made by hand", slice(""), "EndpointSlice shop/a endpoints.addresses 10.96.3.7"},
		{"mirrored", slice(mirrored), "Endpoints shop/cart subsets.addresses 10.96.3.7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := places(scanner(t).Find(tt.o)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func places(all []Reference) string {
	var out []string
	for _, r := range all {
		out = append(out, r.Object+" "+r.Field+" "+r.Value)
	}
	return strings.Join(out, "; ")
}

// TestCustomResources: ranges in a list count together, and with what is excepted from them.
func TestCustomResources(t *testing.T) {
	for text, want := range map[string]string{
		"{apiVersion: networking.istio.io/v1, kind: ServiceEntry, spec: {addresses: [10.96.3.7, 10.96.3.70], ports: [{number: 80}]}}": "ServiceEntry a " +
			"spec.addresses[0] 10.96.3.7",
		"{apiVersion: crd.projectcalico.org/v1, kind: NetworkSet, spec: {nets: [10.96.0.0/16]}}":                                             "Calico NetworkSet a spec.nets 10.96.0.0/16",
		"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, spec: {egress: [{toCIDR: [10.96.0.0/16, 172.24.0.0/16, 10.96.3.7/32]}]}}":     "",
		"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, spec: {egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.96.0.0/16]}]}]}}": "",
		"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, spec: {egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.97.0.0/16]}]}]}}": "CiliumNetworkPolicy " +
			"a spec.egress[0].toCIDRSet[0].cidr 10.0.0.0/8",
		"{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, specs: [{ingress: [{fromCIDRSet: [{cidrGroupRef: x}]}]}]}": "",
		"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, spec: {addresses: [10.96.0.1 - 10.96.0.9, 192.0.2.1-192.0.2.9]}}": "IPAddressPool a " +
			"spec.addresses[0] 10.96.0.1 - 10.96.0.9",
		"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, spec: {addresses: [10.0.0.0-172.31.255.255, a-b]}}": "",
		"{apiVersion: example.com/v1, kind: Thing, status: {address: 10.96.3.7}}":                                  "",
	} {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetName("a")
		if got := places(scanner(t).Find(o)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
