package offline

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"
)

type writer struct {
	zip   *gzip.Writer
	tar   *tar.Writer
	sum   hash.Hash
	at    time.Time
	done  Manifest
	pages int
}

func newWriter(to io.Writer, head *Head) (*writer, error) {
	zip := gzip.NewWriter(to)
	w := &writer{zip: zip, tar: tar.NewWriter(zip), sum: sha256.New(), at: head.Time, done: Manifest{Counts: map[string]int{}}}
	return w, w.entry(headName, head)
}

// unread notes a resource of which not all is read.
func (w *writer) unread(name string) {
	if !slices.Contains(w.done.NotRead, name) {
		w.done.NotRead = append(w.done.NotRead, name)
	}
}

// page writes objects. Those of a version that is not the first one of its resource are not
// counted.
func (w *writer) page(p *page, count bool) error {
	name := resourceName(p.Group, p.Resource)
	if count {
		w.done.Counts[name] += len(p.Items)
	}
	if p.Refused != nil && p.Name == "" {
		w.unread(name)
	}
	w.pages++
	return w.entry(fmt.Sprintf("%s%06d.json", objectsDir, w.pages), p)
}

func (w *writer) entry(name string, of any) error {
	body, err := json.Marshal(of)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if name != manifestName {
		add(w.sum, name, body)
		w.done.Entries++
	}
	head := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(body)), ModTime: w.at, Format: tar.FormatPAX}
	if err := w.tar.WriteHeader(head); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if _, err := w.tar.Write(body); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func (w *writer) close() (*Manifest, error) {
	w.done.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	for name, count := range w.done.Counts {
		if count == 0 {
			delete(w.done.Counts, name)
		}
	}
	slices.Sort(w.done.NotRead)
	if err := w.entry(manifestName, w.done); err != nil {
		return nil, err
	}
	if err := w.tar.Close(); err != nil {
		return nil, fmt.Errorf("writing the end: %w", err)
	}
	if err := w.zip.Close(); err != nil {
		return nil, fmt.Errorf("writing the end: %w", err)
	}
	return &w.done, nil
}

// add has a checksum take an entry, with its length, so that no bytes can go from one to the next.
func add(sum hash.Hash, name string, body []byte) {
	begin(sum, name, int64(len(body)))
	_, _ = sum.Write(body) // a hash takes everything
}

func begin(sum hash.Hash, name string, size int64) { fmt.Fprintf(sum, "%s %d\n", name, size) }

func resourceName(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}
