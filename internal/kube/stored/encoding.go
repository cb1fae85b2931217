package stored

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// Swap is an address that a Service is at, and the one that it is to be at instead.
type Swap struct{ From, To netip.Addr }

// How values begin that API servers write into etcd.
const (
	// protobufMagic is Kubernetes' (k8s.io/apimachinery pkg/runtime/serializer/protobuf).
	protobufMagic = "k8s\x00"
	// encryptedMagic marks encryption at rest (k8s.io/apiserver
	// pkg/server/options/encryptionconfig).
	encryptedMagic = "k8s:enc:"
	// cborMagic is self-described CBOR (RFC 8949, section 3.4.6), with gate CBORServingAndStorage.
	cborMagic = "\xd9\xd9\xf7"
)

// EncodingError says that a stored object is not understood, and left alone.
type EncodingError struct{ Problem, Hint string }

func (e *EncodingError) Error() string  { return e.Problem }
func (e *EncodingError) Advice() string { return e.Hint }

func unknown(format string, args ...any) error {
	return &EncodingError{
		Problem: "its encoding is not understood: " + fmt.Sprintf(format, args...),
		Hint:    "move the Service by another strategy: replumb.dev/strategy=hop or pin",
	}
}

// Readdress swaps addresses in spec.clusterIP and spec.clusterIPs and keeps every other byte,
// unknown fields included. It fails with an EncodingError for what is encrypted or not understood
// to the last byte.
func Readdress(value []byte, swaps ...Swap) ([]byte, error) {
	before, err := Decode(value)
	if err != nil {
		return nil, err
	}
	changed, err := rewrite(value, swaps)
	if err != nil {
		return nil, err
	}
	return changed, faithful(value, changed, before, swaps)
}

// Decode reads a stored Service.
func Decode(value []byte) (*corev1.Service, error) {
	svc := &corev1.Service{}
	switch {
	case bytes.HasPrefix(value, []byte(encryptedMagic)):
		return nil, &EncodingError{
			Problem: "it is encrypted at rest, and only API servers have the key",
			Hint:    "move such Services by strategy hop, or pin them; etcd is for clusters that do not encrypt services",
		}
	case bytes.HasPrefix(value, []byte(cborMagic)):
		return nil, unknown("it is CBOR")
	case bytes.HasPrefix(value, []byte(protobufMagic)):
		envelope := &runtime.Unknown{}
		if err := envelope.Unmarshal(value[len(protobufMagic):]); err != nil {
			return nil, unknown("%v", err)
		}
		if envelope.APIVersion != "v1" || envelope.Kind != "Service" || envelope.ContentEncoding != "" {
			return nil, unknown("it is a %s %s with encoding %q", envelope.APIVersion, envelope.Kind, envelope.ContentEncoding)
		}
		if err := svc.Unmarshal(envelope.Raw); err != nil {
			return nil, unknown("%v", err)
		}
	case bytes.HasPrefix(value, []byte("{")):
		if err := json.Unmarshal(value, svc); err != nil {
			return nil, unknown("%v", err)
		}
		if svc.APIVersion != "v1" || svc.Kind != "Service" {
			return nil, unknown("it is a %s %s", svc.APIVersion, svc.Kind)
		}
	default:
		return nil, unknown("it begins with %q", value[:min(len(value), 8)])
	}
	svc.APIVersion, svc.Kind = "v1", "Service"
	return svc, nil
}

func rewrite(value []byte, swaps []Swap) ([]byte, error) {
	if value[0] == '{' {
		return rewriteJSON(value, swaps)
	}
	// runtime.Unknown has the object in field 2, v1.Service its spec (generated.proto of
	// k8s.io/apimachinery and k8s.io/api/core/v1).
	body, err := within(value[len(protobufMagic):], 2, func(object []byte) ([]byte, error) {
		return within(object, 2, func(spec []byte) ([]byte, error) { return readdressSpec(spec, swaps) })
	})
	if err != nil {
		return nil, err
	}
	return append([]byte(protobufMagic), body...), nil
}

// The fields of v1.ServiceSpec that have addresses of the cluster's own ranges.
const (
	fieldClusterIP  = 3
	fieldClusterIPs = 18
)

func readdressSpec(spec []byte, swaps []Swap) ([]byte, error) {
	change := func(old []byte) ([]byte, error) { return []byte(swapped(string(old), swaps)), nil }
	out, err := within(spec, fieldClusterIP, change)
	if err != nil {
		return nil, err
	}
	return within(out, fieldClusterIPs, change)
}

func swapped(text string, swaps []Swap) string {
	for _, s := range swaps {
		if text == s.From.String() {
			return s.To.String()
		}
	}
	return text
}

func within(message []byte, field protowire.Number, change func([]byte) ([]byte, error)) ([]byte, error) {
	var out []byte
	for len(message) > 0 {
		number, kind, header := protowire.ConsumeTag(message)
		if header < 0 {
			return nil, unknown("%v", protowire.ParseError(header))
		}
		length := protowire.ConsumeFieldValue(number, kind, message[header:])
		if length < 0 {
			return nil, unknown("%v", protowire.ParseError(length))
		}
		whole := message[:header+length]
		message = message[len(whole):]
		if number != field || kind != protowire.BytesType {
			out = append(out, whole...)
			continue
		}
		inner, _ := protowire.ConsumeBytes(whole[header:])
		changed, err := change(inner)
		if err != nil {
			return nil, err
		}
		out = protowire.AppendBytes(append(out, whole[:header]...), changed)
	}
	return out, nil
}

// rewriteJSON keeps the text of unchanged values; the order of keys is lost.
func rewriteJSON(value []byte, swaps []Swap) ([]byte, error) {
	object, spec := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if err := json.Unmarshal(value, &object); err != nil {
		return nil, unknown("%v", err)
	}
	if err := json.Unmarshal(object["spec"], &spec); err != nil {
		return nil, unknown("spec: %v", err)
	}
	var one string
	var all []string
	for name, into := range map[string]any{"clusterIP": &one, "clusterIPs": &all} {
		if err := json.Unmarshal(spec[name], into); err != nil {
			return nil, unknown("spec.%s: %v", name, err)
		}
	}
	for i := range all {
		all[i] = swapped(all[i], swaps)
	}
	for name, what := range map[string]any{"clusterIP": swapped(one, swaps), "clusterIPs": all} {
		text, err := json.Marshal(what)
		if err != nil {
			return nil, err
		}
		spec[name] = text
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, unknown("spec: %v", err)
	}
	object["spec"] = text
	out, err := json.Marshal(object)
	if err != nil {
		return nil, unknown("%v", err)
	}
	return append(out, '\n'), nil // as API servers end it
}

// faithful verifies that only addresses have changed, and that swapping them back restores the
// original.
func faithful(value, changed []byte, before *corev1.Service, swaps []Swap) error {
	after, err := Decode(changed)
	if err != nil {
		return err
	}
	want := before.DeepCopy()
	want.Spec.ClusterIP = swapped(want.Spec.ClusterIP, swaps)
	for i, text := range want.Spec.ClusterIPs {
		want.Spec.ClusterIPs[i] = swapped(text, swaps)
	}
	if !equality.Semantic.DeepEqual(want, after) {
		return unknown("it means something else once it is written again")
	}
	back := make([]Swap, len(swaps))
	for i, s := range swaps {
		back[i] = Swap{From: s.To, To: s.From}
	}
	was, err := rewrite(changed, back)
	if err != nil {
		return err
	}
	if value[0] == '{' {
		if value, err = rewriteJSON(value, nil); err != nil { // the same order of keys
			return err
		}
	}
	if !bytes.Equal(was, value) {
		return unknown("it is not written as API servers write")
	}
	return nil
}
