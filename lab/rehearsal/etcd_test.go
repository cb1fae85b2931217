package rehearsal

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestEncode: what is written is what API servers write, and nothing is that they could not read.
func TestEncode(t *testing.T) {
	pod := objectOf(
		t,
		"",
		"v1",
		"pods",
		`{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, uid: u}, status: {podIP: 10.244.1.7}}`,
	)
	value, err := encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(value), "k8s\x00") {
		t.Errorf("it begins with %q", value[:4])
	}
	read, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p, is := read.(*corev1.Pod); !is || p.UID != "u" || p.Status.PodIP != "10.244.1.7" {
		t.Errorf("%+v", read)
	}
	for _, bad := range []string{
		`{apiVersion: v1, kind: Pod, metadata: {name: web}}`,
		`{apiVersion: v1, kind: Secret, metadata: {name: web, uid: u}, data: {key: "no base64!"}}`,
		`{apiVersion: example.com/v1, kind: Pod, metadata: {name: web, uid: u}}`,
	} {
		if value, err := encode(objectOf(t, "", "v1", "pods", bad)); err == nil {
			t.Errorf("%s is written as %q", bad, value)
		}
	}
}

// TestDirect: what an API server has a list of its own for is made by it.
func TestDirect(t *testing.T) {
	for _, tt := range []struct {
		group, version, resource, text string
		want                           bool
	}{
		{"", "v1", "pods", `{kind: Pod}`, true},
		{"apps", "v1", "deployments", `{kind: Deployment}`, true},
		{"apps", "v1", "statefulsets", `{kind: StatefulSet}`, false},
		{"apps", "v1beta1", "deployments", `{kind: Deployment}`, false},
		{"", "v1", "services", `{kind: Service, spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}}`, true},
		{"", "v1", "services", `{kind: Service, spec: {clusterIP: None}}`, true},
		{"", "v1", "services", `{kind: Service, spec: {ports: [{port: 80}, {port: 81, nodePort: 30080}]}}`, false},
		{"", "v1", "services", `{kind: Service, spec: {healthCheckNodePort: 30081, ports: [{port: 80}]}}`, false},
		{"serving.knative.dev", "v1", "services", `{kind: Service}`, false},
		{"networking.k8s.io", "v1", "ipaddresses", `{kind: IPAddress, metadata: {name: 10.96.0.9}}`, false},
	} {
		if got := objectOf(t, tt.group, tt.version, tt.resource, tt.text).direct(); got != tt.want {
			t.Errorf("%s %s: %t", tt.group, tt.text, got)
		}
	}
}

// TestAllocated: each address of a Service is one that no other gets.
func TestAllocated(t *testing.T) {
	svc := objectOf(t, "", "v1", "services", `{kind: Service, metadata: {namespace: shop, name: web},
  spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9, "fd00:10:96::9"]}}`)
	var names []string
	for _, o := range allocated(svc) {
		value, err := encode(o)
		if err != nil {
			t.Fatal(err)
		}
		read, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		ip, is := read.(*networkingv1.IPAddress)
		if !is || !o.direct() || ip.Spec.ParentRef.Namespace != "shop" || ip.Spec.ParentRef.Name != "web" ||
			ip.Spec.ParentRef.Resource != "services" {
			t.Errorf("%+v", read)
		}
		names = append(names, ip.Labels[networkingv1.LabelIPAddressFamily]+" "+ip.Name)
	}
	if got := strings.Join(names, ", "); got != "IPv4 10.96.0.9, IPv6 fd00:10:96::9" {
		t.Error(got)
	}
	if none := allocated(
		objectOf(t, "", "v1", "services", `{kind: Service, metadata: {name: web}, spec: {clusterIP: None}}`),
	); len(
		none,
	) > 0 {
		t.Errorf("a headless Service has %v", none)
	}
}
