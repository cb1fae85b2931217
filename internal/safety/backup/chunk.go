package backup

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

const (
	// maxChunk is what a single large object may need.
	maxChunk = 1000 << 10

	// dataObjects has the manifests, compressed; dataIndex lists them for people.
	dataObjects = "objects.jsonl.gz"
	dataIndex   = "index"

	// margin is what ending a gzip stream may add.
	margin = 1 << 10
)

type line struct {
	key  Key
	json []byte
}

// manifest drops managedFields, which API servers do not take back.
func manifest(c client.Client, key Key, o client.Object) (line, error) {
	if key.UID == "" {
		return line{}, errors.New("it has no UID, so it was not read from the API server")
	}
	o = o.DeepCopyObject().(client.Object)
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return line{}, err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	o.SetManagedFields(nil)
	body, err := json.Marshal(o)
	return line{key: key, json: body}, err
}

type packed struct {
	payload []byte
	index   string
	first   Key
}

type packer struct {
	buf   bytes.Buffer
	zip   *gzip.Writer
	index strings.Builder
	first Key
	count int
	plain int
	// pending is what zip has taken and may not have written to buf.
	pending int
}

func newPacker() *packer {
	p := &packer{}
	p.zip = gzip.NewWriter(&p.buf)
	return p
}

// fits reports whether a line certainly fits, and flushes only if it has to.
func (p *packer) fits(l line, limit int) (bool, error) {
	if p.plain+len(l.json)+1 > chunklog.MaxPlain {
		return false, nil
	}
	need := len(l.json) + len(l.key.String()) + 2 + margin
	if p.buf.Len()+p.pending+p.index.Len()+need <= limit {
		return true, nil
	}
	if p.pending == 0 {
		return false, nil
	}
	p.pending = 0
	if err := p.zip.Flush(); err != nil {
		return false, err
	}
	return p.buf.Len()+p.index.Len()+need <= limit, nil
}

func (p *packer) add(l line) error {
	if p.count == 0 {
		p.first = l.key
	}
	p.count++
	p.plain += len(l.json) + 1
	p.pending += len(l.json) + 1
	p.index.WriteString(l.key.String() + "\n")
	_, err := p.zip.Write(append(l.json, '\n'))
	return err
}

func (p *packer) finish() (packed, error) {
	if err := p.zip.Close(); err != nil {
		return packed{}, err
	}
	out := packed{payload: p.buf.Bytes(), index: p.index.String(), first: p.first}
	if size := len(out.payload) + len(out.index); size > maxChunk {
		return packed{}, &ManifestError{Object: p.first, Err: fmt.Errorf("it is too large: %d bytes, compressed", size)}
	}
	return out, nil
}

// pack fills as few chunks as possible. An oversized line gets its own.
func pack(lines []line, limit int) ([]packed, error) {
	var all []packed
	p := newPacker()
	for _, l := range lines {
		fits, err := p.fits(l, limit)
		if err != nil {
			return nil, err
		}
		if !fits && p.count > 0 {
			full, err := p.finish()
			if err != nil {
				return nil, err
			}
			all, p = append(all, full), newPacker()
		}
		if err := p.add(l); err != nil {
			return nil, err
		}
	}
	if p.count == 0 {
		return all, nil
	}
	last, err := p.finish()
	return append(all, last), err
}

// build makes the object of a chunk, which is immutable, as backups are.
func (p packed) build(owner *v1alpha1.Migration, sequence int, secret bool) client.Object {
	sum := chunklog.Sum(p.payload)
	immutable := true
	metadata := chunklog.Metadata(
		v1alpha1.SystemNamespace, namePrefix(owner.Name)+sum[:12], v1alpha1.RoleBackup, owner.Name, owner.UID, sequence,
	)
	metadata.Annotations[chunklog.AnnotationSum] = sum
	if secret {
		return &corev1.Secret{
			ObjectMeta: metadata, Immutable: &immutable, Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{dataObjects: p.payload, dataIndex: []byte(p.index)},
		}
	}
	return &corev1.ConfigMap{
		ObjectMeta: metadata, Immutable: &immutable,
		BinaryData: map[string][]byte{dataObjects: p.payload}, Data: map[string]string{dataIndex: p.index},
	}
}

func namePrefix(migration string) string { return "backup-" + migration + "-" }

type piece struct {
	name     string
	sequence int
	sum      string
	payload  []byte
}

// CorruptError says which backup is not what was stored.
type CorruptError struct {
	Object string
	Err    error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("backup %s is damaged: %v", e.Object, e.Err)
}

// ErrForeign says that status.backups of the Migration lacks a backup's digest.
var ErrForeign = errors.New("someone else wrote it: its digest is not in status.backups of the Migration")

func (e *CorruptError) Advice() string {
	if !errors.Is(e.Err, ErrForeign) {
		return ""
	}
	return "find out who writes in namespace " + v1alpha1.SystemNamespace + ", and delete it; what replumb stored itself stays"
}

func (e *CorruptError) Unwrap() error { return e.Err }

func (c *piece) each(f func(*unstructured.Unstructured)) error {
	err := chunklog.Each(c.payload, c.sum, func(raw json.RawMessage) error {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON(raw); err != nil {
			return err
		}
		f(o)
		return nil
	})
	if err != nil {
		return &CorruptError{Object: c.name, Err: err}
	}
	return nil
}

func (c *piece) addTo(s Objects) error {
	return c.each(func(o *unstructured.Unstructured) { s[keyOf(o)] = struct{}{} })
}
