package stored

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// protobufMagic is Kubernetes' (k8s.io/apimachinery pkg/runtime/serializer/protobuf).
	protobufMagic = "k8s\x00"
	// encryptedMagic marks encryption at rest (k8s.io/apiserver
	// pkg/server/options/encryptionconfig).
	encryptedMagic = "k8s:enc:"
	// cborMagic is self-described CBOR (RFC 8949, section 3.4.6), with gate CBORServingAndStorage.
	cborMagic = "\xd9\xd9\xf7"
)

// EncodingError says why a stored object cannot be changed without the API server.
type EncodingError struct{ Problem, Hint string }

func (e *EncodingError) Error() string  { return e.Problem }
func (e *EncodingError) Advice() string { return e.Hint }

func unknown(format string, args ...any) error {
	return &EncodingError{
		Problem: "its encoding is not understood: " + fmt.Sprintf(format, args...),
		Hint:    "move the Service by another strategy: replumb.dev/strategy=hop or pin",
	}
}

// kind is a kind of stored object, and the versions in which it is known. Their fields are the
// same in all of these.
type kind struct {
	name     string
	versions []string
}

func serviceKind() kind { return kind{"Service", []string{"v1"}} }

// addressKind is kept as v1beta1 by earlier versions of Kubernetes.
func addressKind() kind {
	return kind{"IPAddress", []string{"networking.k8s.io/v1", "networking.k8s.io/v1beta1"}}
}

// object is what Kubernetes' types can do.
type object interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// envelope is around an object: how API servers have written it.
type envelope struct {
	unknown runtime.Unknown
	json    bool
}

// decode reads a stored object into an empty one, and fails with an EncodingError unless writing
// it unchanged gives what was read: a field that this version does not know would be lost else.
func decode(value []byte, of kind, into object) (*envelope, error) {
	e, err := open(value, into)
	if err != nil {
		return nil, err
	}
	if e.unknown.Kind != of.name || !slices.Contains(of.versions, e.unknown.APIVersion) {
		return nil, unknown("it is a %s %s", e.unknown.APIVersion, e.unknown.Kind)
	}
	again, err := e.encode(into)
	if err != nil {
		return nil, err
	}
	if !same(value, again, e.json) {
		return nil, unknown("it has fields that this version of replumb does not know, or is not written as API servers write")
	}
	return e, nil
}

func open(value []byte, into object) (*envelope, error) {
	e := &envelope{}
	switch {
	case bytes.HasPrefix(value, []byte(encryptedMagic)):
		return nil, &EncodingError{
			Problem: "it is encrypted at rest, and only API servers have the key",
			Hint:    "move such Services by strategy hop, or pin them; etcd is for clusters that do not encrypt services or ipaddresses",
		}
	case bytes.HasPrefix(value, []byte(cborMagic)):
		return nil, unknown("it is CBOR")
	case bytes.HasPrefix(value, []byte(protobufMagic)):
		if err := e.unknown.Unmarshal(value[len(protobufMagic):]); err != nil {
			return nil, unknown("%v", err)
		}
		if e.unknown.ContentEncoding != "" {
			return nil, unknown("it is of encoding %q", e.unknown.ContentEncoding)
		}
		if err := into.Unmarshal(e.unknown.Raw); err != nil {
			return nil, unknown("%v", err)
		}
	case bytes.HasPrefix(value, []byte("{")):
		e.json = true
		if err := json.Unmarshal(value, into); err != nil {
			return nil, unknown("%v", err)
		}
		if err := json.Unmarshal(value, &e.unknown.TypeMeta); err != nil {
			return nil, unknown("%v", err)
		}
	default:
		return nil, unknown("it begins with %q", value[:min(len(value), 8)])
	}
	return e, nil
}

func (e *envelope) encode(o object) ([]byte, error) {
	if e.json {
		out, err := json.Marshal(o)
		if err != nil {
			return nil, unknown("%v", err)
		}
		return append(out, '\n'), nil // as API servers end it
	}
	raw, err := o.Marshal()
	if err != nil {
		return nil, unknown("%v", err)
	}
	around := e.unknown
	around.Raw = raw
	out, err := around.Marshal()
	if err != nil {
		return nil, unknown("%v", err)
	}
	return append([]byte(protobufMagic), out...), nil
}

// same compares JSON by its meaning, since the order of keys is nothing.
func same(a, b []byte, inJSON bool) bool {
	if !inJSON {
		return bytes.Equal(a, b)
	}
	var was, is any
	return json.Unmarshal(a, &was) == nil && json.Unmarshal(b, &is) == nil && equality.Semantic.DeepEqual(was, is)
}

// Decode reads a stored Service, and returns an EncodingError for one that could not be written
// again as it is.
func Decode(value []byte) (*corev1.Service, error) {
	svc := &corev1.Service{}
	if _, err := decode(value, serviceKind(), svc); err != nil {
		return nil, err
	}
	svc.APIVersion, svc.Kind = "v1", "Service"
	return svc, nil
}
