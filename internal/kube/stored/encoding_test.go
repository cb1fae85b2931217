package stored

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func swap(from, to string) Swap {
	return Swap{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to)}
}

func sample() *corev1.Service {
	cluster, local := corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	dual := corev1.IPFamilyPolicyRequireDualStack
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "0b5b9f6e-0000-0000-0000-000000000001", Annotations: map[string]string{"at": "10.96.0.7"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7", "fd00:96::7"},
			ExternalIPs: []string{"10.96.0.7"}, LoadBalancerIP: "10.96.0.7", Selector: map[string]string{"app": "cart"},
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}},
			IPFamilyPolicy: &dual, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			InternalTrafficPolicy: &cluster, ExternalTrafficPolicy: local, HealthCheckNodePort: 31000,
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	}
}

// inProtobuf writes a Service as API servers do.
func inProtobuf(t testing.TB, svc *corev1.Service) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(svc, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func inJSON(t testing.TB, svc *corev1.Service) []byte {
	t.Helper()
	out, err := json.Marshal(svc)
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func TestReaddress(t *testing.T) {
	for name, encode := range map[string]func(testing.TB, *corev1.Service) []byte{"protobuf": inProtobuf, "json": inJSON} {
		t.Run(name, func(t *testing.T) {
			got, err := Readdress(encode(t, sample()), swap("10.96.0.7", "172.24.0.7"))
			if err != nil {
				t.Fatal(err)
			}
			want := sample()
			want.Spec.ClusterIP, want.Spec.ClusterIPs[0] = "172.24.0.7", "172.24.0.7"
			after, err := Decode(got)
			if err != nil || !equality.Semantic.DeepEqual(after, want) {
				t.Errorf("it is now\n%+v\n(%v), want\n%+v", after, err, want)
			}
			if name == "protobuf" && !bytes.Equal(got, inProtobuf(t, want)) {
				t.Error("it is not what an API server would have written")
			}
		})
	}
}

func TestReaddressOfBothFamilies(t *testing.T) {
	got, err := Readdress(inProtobuf(t, sample()), swap("10.96.0.7", "172.24.0.7"), swap("fd00:96::7", "fd00:24::7"))
	if err != nil {
		t.Fatal(err)
	}
	if after, err := Decode(got); err != nil || strings.Join(after.Spec.ClusterIPs, " ") != "172.24.0.7 fd00:24::7" {
		t.Errorf("it is at %v (%v)", after.Spec.ClusterIPs, err)
	}
}

// TestReaddressKeepsWhatIsNotKnown: an API server that is newer than this build writes fields which
// this build would lose, if it wrote what it has read.
func TestReaddressKeepsWhatIsNotKnown(t *testing.T) {
	later := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "of a later version")
	envelope := &runtime.Unknown{}
	if err := envelope.Unmarshal(inProtobuf(t, sample())[len(protobufMagic):]); err != nil {
		t.Fatal(err)
	}
	var err error
	envelope.Raw, err = within(envelope.Raw, 2, func(spec []byte) ([]byte, error) { return slices.Concat(spec, later), nil })
	if err != nil {
		t.Fatal(err)
	}
	body, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string][]byte{
		"protobuf": append([]byte(protobufMagic), body...),
		"json":     bytes.Replace(inJSON(t, sample()), []byte(`"spec":{`), []byte(`"spec":{"later":"of a later version",`), 1),
	} {
		got, err := Readdress(value, swap("10.96.0.7", "172.24.0.7"))
		if err != nil || !bytes.Contains(got, []byte("of a later version")) {
			t.Errorf("%s: a field of a later version is lost (%v)", name, err)
		}
	}
}

func TestReaddressRefuses(t *testing.T) {
	pod := inProtobuf(t, sample())
	for name, tt := range map[string]struct {
		value []byte
		want  string
	}{
		"encrypted":        {[]byte("k8s:enc:aescbc:v1:key1:\x01\x02"), "encrypted at rest"},
		"CBOR":             {[]byte("\xd9\xd9\xf7\xa1"), "CBOR"},
		"empty":            {nil, "begins with"},
		"something else":   {[]byte("hello"), "begins with"},
		"cut off":          {pod[:len(pod)/2], "not understood"},
		"another kind":     {bytes.Replace(pod, []byte("\x12\x07Service"), []byte("\x12\x07Secrets"), 1), "v1 Secrets"},
		"another version":  {[]byte(`{"apiVersion":"v2","kind":"Service"}`), "v2 Service"},
		"JSON without one": {[]byte(`{"apiVersion":"v1","kind":"Service","spec":{}}`), "spec.clusterIP"},
	} {
		_, err := Readdress(tt.value, swap("10.96.0.7", "172.24.0.7"))
		if !errors.As(err, new(*EncodingError)) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an EncodingError about %q", name, err, tt.want)
		}
	}
}

// FuzzReaddress: whatever is taken differs from what was there in the addresses and in nothing
// else, and going back gives what was there to the last byte.
func FuzzReaddress(f *testing.F) {
	f.Add(inProtobuf(f, sample()))
	f.Add(inProtobuf(f, &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7", ClusterIPs: []string{"10.96.0.7"}}}))
	f.Add(inJSON(f, sample()))
	f.Add([]byte(encryptedMagic))
	there, back := swap("10.96.0.7", "172.24.0.7"), swap("172.24.0.7", "10.96.0.7")
	f.Fuzz(func(t *testing.T, value []byte) {
		got, err := Readdress(value, there)
		if err != nil {
			if !errors.As(err, new(*EncodingError)) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		before, err := Decode(value)
		if err != nil {
			t.Fatal(err)
		}
		after, err := Decode(got)
		if err != nil {
			t.Fatal(err)
		}
		after.Spec.ClusterIP, after.Spec.ClusterIPs = before.Spec.ClusterIP, before.Spec.ClusterIPs
		if !equality.Semantic.DeepEqual(before, after) {
			t.Fatalf("more than addresses has changed:\n%+v\n%+v", before, after)
		}
		was, err := Readdress(got, back)
		if err != nil {
			t.Fatal(err)
		}
		if value[0] != '{' && !bytes.Equal(was, value) {
			t.Fatalf("going back gives\n%q, it was\n%q", was, value)
		}
	})
}
