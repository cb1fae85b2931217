// Package chunk is how records of any number are kept in objects of bounded size: JSON, one record a line, compressed, with
// a checksum.
package chunk

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Size is how many bytes go into one object. The API server takes 1 MiB (MaxSecretSize in k8s.io/kubernetes
// pkg/apis/core/types.go) and etcd requests of 1.5 MiB.
const Size = 700 << 10

// AnnotationSum is the annotation that holds the checksum of an object's payload.
const AnnotationSum = "replumb.dev/sha256"

// Sum is the checksum of a payload.
func Sum(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:])
}

// Compress makes one gzip member of plain text. Members can be put one after the other: together they are a payload.
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

// Each calls f for every record of a payload whose checksum is right, in order.
func Each(payload []byte, sum string, f func(json.RawMessage) error) error {
	if got := Sum(payload); got != sum {
		return fmt.Errorf("its checksum is %s and should be %q", got, sum)
	}
	plain, err := gzip.NewReader(bytes.NewReader(payload))
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(plain); ; {
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
