package rehearsal

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestEncode: what is written is what API servers write, and nothing is that they could not read.
func TestEncode(t *testing.T) {
	pod := objectOf(t, "", "v1", "pods", `{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web, uid: u}, status: {podIP: 10.244.1.7}}`)
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
