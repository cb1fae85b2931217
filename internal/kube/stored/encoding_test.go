package stored

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func sample() *corev1.Service {
	cluster, local := corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	dual := corev1.IPFamilyPolicyRequireDualStack
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "0b5b9f6e-0000-0000-0000-000000000001", Annotations: map[string]string{"b": "2", "a": "1"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00:96::7"},
			ExternalIPs: []string{"192.0.2.7"}, Selector: map[string]string{"app": "cart"},
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
			IPFamilyPolicy: &dual, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			InternalTrafficPolicy: &cluster, ExternalTrafficPolicy: local, HealthCheckNodePort: 31000,
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	}
}

func inProtobuf(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func inJSON(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	out, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

// TestEncoding: what is changed is what an API server would have written.
func TestEncoding(t *testing.T) {
	for name, encode := range map[string]func(testing.TB, runtime.Object) []byte{"protobuf": inProtobuf, "json": inJSON} {
		t.Run(name, func(t *testing.T) {
			svc := &corev1.Service{}
			around, err := decode(encode(t, sample()), serviceKind(), svc)
			if err != nil {
				t.Fatal(err)
			}
			want := sample()
			for _, s := range []*corev1.Service{svc, want} {
				s.Spec.ClusterIP, s.Spec.ClusterIPs[0] = "172.24.0.7", "172.24.0.7"
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "10.96.0.7")
			}
			got, err := around.encode(svc)
			if err != nil || !bytes.Equal(got, encode(t, want)) {
				t.Errorf("it is now\n%q\n(%v), want\n%q", got, err, encode(t, want))
			}
		})
	}
}

// TestEncodingOfEarlierVersions: IPAddresses stay in the version in which they are kept.
func TestEncodingOfEarlierVersions(t *testing.T) {
	ip := &networkingv1.IPAddress{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1beta1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.7"},
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: "cart"}},
	}
	value, have := inJSON(t, ip), &networkingv1.IPAddress{}
	around, err := decode(value, addressKind(), have)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := around.encode(have); err != nil || !bytes.Equal(got, value) {
		t.Errorf("it is now %q (%v)", got, err)
	}
}

// later is a Service with a field of a later version of Kubernetes.
func later(t testing.TB) []byte {
	t.Helper()
	envelope := &runtime.Unknown{}
	if err := envelope.Unmarshal(inProtobuf(t, sample())[len(protobufMagic):]); err != nil {
		t.Fatal(err)
	}
	envelope.Raw = protowire.AppendString(protowire.AppendTag(envelope.Raw, 999, protowire.BytesType), "of a later version")
	body, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte(protobufMagic), body...)
}

func TestDecodeRefuses(t *testing.T) {
	whole := inProtobuf(t, sample())
	for name, tt := range map[string]struct {
		value []byte
		want  string
	}{
		"encrypted":       {[]byte("k8s:enc:aescbc:v1:key1:\x01\x02"), "encrypted at rest"},
		"CBOR":            {[]byte("\xd9\xd9\xf7\xa1"), "CBOR"},
		"empty":           {nil, "begins with"},
		"something else":  {[]byte("hello"), "begins with"},
		"cut off":         {whole[:len(whole)/2], "not understood"},
		"another kind":    {bytes.Replace(whole, []byte("\x12\x07Service"), []byte("\x12\x07Secrets"), 1), "v1 Secrets"},
		"another version": {[]byte(`{"apiVersion":"v2","kind":"Service"}`), "v2 Service"},
		"a later field":   {later(t), "does not know"},
		"a later field in JSON": {
			bytes.Replace(inJSON(t, sample()), []byte(`"spec":{`), []byte(`"spec":{"later":"of a later version",`), 1), "does not know",
		},
	} {
		_, err := Decode(tt.value)
		if !errors.As(err, new(*EncodingError)) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an EncodingError about %q", name, err, tt.want)
		}
	}
}

// FuzzDecode: what is understood means the same, and is the same, once it is written again.
func FuzzDecode(f *testing.F) {
	f.Add(inProtobuf(f, sample()))
	f.Add(inProtobuf(f, &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}}}))
	f.Add(inJSON(f, sample()))
	f.Add(later(f))
	f.Add([]byte(encryptedMagic))
	f.Fuzz(func(t *testing.T, value []byte) {
		svc := &corev1.Service{}
		around, err := decode(value, serviceKind(), svc)
		if err != nil {
			if !errors.As(err, new(*EncodingError)) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		before := svc.DeepCopy()
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "10.96.0.7")
		changed, err := around.encode(svc)
		if err != nil {
			t.Fatal(err)
		}
		after := &corev1.Service{}
		if _, err := decode(changed, serviceKind(), after); err != nil {
			t.Fatal(err)
		}
		after.Spec.ExternalIPs = before.Spec.ExternalIPs
		if !equality.Semantic.DeepEqual(before, after) {
			t.Fatalf("more than an address has changed:\n%+v\n%+v", before, after)
		}
	})
}
