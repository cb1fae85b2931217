// Package chunklog keeps any number of records in objects of bounded size: JSON lines, compressed,
// with a checksum.
package chunklog

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Size is an object's payload. The API server takes 1 MiB (MaxSecretSize in k8s.io/kubernetes
// pkg/apis/core/types.go), etcd requests of 1.5 MiB.
const Size = 700 << 10

// MaxPlain bounds the uncompressed content: a few foreign bytes could be gigabytes.
const MaxPlain = 64 << 20

// ErrTooLarge says that a payload holds more than MaxPlain.
var ErrTooLarge = fmt.Errorf("unpacked it is larger than %d MiB", MaxPlain>>20)

// AnnotationSum is the annotation that holds the checksum of an object's payload.
const AnnotationSum = "replumb.dev/sha256"

const annotationSequence = "replumb.dev/sequence"

// Sequence is the place of an object. One that cannot be read only changes the order.
func Sequence(o metav1.Object) int {
	n, _ := strconv.Atoi(o.GetAnnotations()[annotationSequence])
	return n
}

// Metadata is that of an object of a log, which goes with its Migration.
func Metadata(namespace, name, role, migration string, owner types.UID, sequence int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels:      map[string]string{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: role},
		Annotations: map[string]string{annotationSequence: strconv.Itoa(sequence)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration", Name: migration, UID: owner,
		}},
	}
}

// Sum is the checksum of a payload.
func Sum(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// Compress makes a gzip member. A payload is any number of members.
func Compress(plain []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// Each calls f for every record of an intact payload, in order; ErrTooLarge beyond MaxPlain.
func Each(payload []byte, sum string, f func(json.RawMessage) error) error {
	return each(payload, sum, MaxPlain, f)
}

func each(payload []byte, sum string, most int64, f func(json.RawMessage) error) error {
	if got := Sum(payload); got != sum {
		return fmt.Errorf("its checksum is %s and should be %q", got, sum)
	}
	plain, err := gzip.NewReader(bytes.NewReader(payload))
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(&bounded{from: plain, left: most}); ; {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := f(raw); err != nil {
			return err
		}
	}
}

type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, ErrTooLarge
	}
	return n, err
}
