package offline

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of what is read: a forged file must not take all memory. A page has 500 objects of at most
// 1.5 MiB, as etcd has them.
const (
	maxEntry = 1 << 30
	maxTotal = 16 << 30
	maxPages = 1 << 20
	maxHead  = 1 << 20
	maxName  = 255
)

// Archive is one that was read.
type Archive struct {
	Head     Head
	Manifest Manifest
	answers  answers
	objects  objects
}

// Open reads the archive in a file.
func Open(file string) (*Archive, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, &Error{Problem: err.Error(), Hint: "replumb snapshot --file FILE writes a snapshot"}
	}
	defer func() { _ = f.Close() }() // it was only read
	a, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return a, nil
}

// Read reads an archive to its end. One that is cut off, damaged, of a newer version or something
// else is an *Error.
func Read(from io.Reader) (*Archive, error) {
	zip, err := gzip.NewReader(from)
	if err != nil {
		return nil, foreign("%v", err)
	}
	packed := &bounded{from: zip, left: maxTotal}
	r := &reader{tar: tar.NewReader(packed), packed: packed, sum: sha256.New()}
	a := &Archive{objects: newObjects()}
	if err := r.head(&a.Head); err != nil {
		return nil, err
	}
	for r.seen = 1; ; r.seen++ {
		ended, err := r.entry(a)
		switch {
		case err != nil:
			return nil, err
		case ended:
			a.objects.sort()
			return a, nil
		case r.seen > maxPages:
			return nil, damaged("it has more than %d entries", maxPages)
		}
	}
}

func (r *reader) entry(a *Archive) (ended bool, err error) {
	h, err := r.next()
	if err != nil {
		return false, damaged("%v", err)
	}
	if !known(h.Name) {
		if err := r.pass(h); err != nil {
			return false, damaged("%v", err)
		}
		return false, nil
	}
	body, err := r.body(h)
	if err != nil {
		return false, damaged("%v", err)
	}
	if h.Name == manifestName {
		return true, r.end(body, a)
	}
	add(r.sum, h.Name, body)
	return false, a.take(h.Name, body)
}

// known reports whether this version has entries of a name. Those of a later version may be passed
// over.
func known(name string) bool {
	return name == answersName || name == manifestName || strings.HasPrefix(name, objectsDir)
}

// pass passes over an entry, whatever its size, but for the checksum.
func (r *reader) pass(h *tar.Header) error {
	begin(r.sum, h.Name, h.Size)
	_, err := io.Copy(r.sum, r.tar)
	return err
}

func (a *Archive) take(name string, body []byte) error {
	switch {
	case name == answersName:
		if err := json.Unmarshal(body, &a.answers); err != nil {
			return damaged("%s: %v", name, err)
		}
	case strings.HasPrefix(name, objectsDir):
		p := &page{}
		if err := json.Unmarshal(body, p); err != nil {
			return damaged("%s: %v", name, err)
		}
		if err := a.objects.take(p); err != nil {
			return damaged("%s: %v", name, err)
		}
	}
	return nil
}

type reader struct {
	tar    *tar.Reader
	packed io.Reader
	sum    hash.Hash
	seen   int
}

// next reads a header. An archive has only files whose names lead nowhere else: unpacking a forged
// one must do no harm.
func (r *reader) next() (*tar.Header, error) {
	h, err := r.tar.Next()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("its end is missing")
	case err != nil:
		return nil, err
	case h.Typeflag != tar.TypeReg:
		return nil, fmt.Errorf("%.100q is no file", h.Name)
	case !filepath.IsLocal(h.Name) || len(h.Name) > maxName || strings.Contains(h.Name, `\`):
		return nil, fmt.Errorf("%.100q is no name of an entry", h.Name)
	case h.Size > maxEntry:
		return nil, fmt.Errorf("%q has more than %d bytes", h.Name, maxEntry)
	}
	return h, nil
}

func (r *reader) body(h *tar.Header) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.tar, maxEntry))
	if err == nil && int64(len(body)) != h.Size {
		err = fmt.Errorf("%q has %d bytes and not %d", h.Name, len(body), h.Size)
	}
	return body, err
}

// head reads the first entry, and refuses other versions and other files, of which it reads no
// more.
func (r *reader) head(into *Head) error {
	h, err := r.tar.Next()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return damaged("%v", err)
	case err != nil:
		return foreign("%v", err)
	case h.Name != headName || h.Typeflag != tar.TypeReg || h.Size > maxHead:
		return foreign("it begins with %.100q", h.Name)
	}
	body, err := r.body(h)
	if err != nil {
		return damaged("%v", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return foreign("%s: %v", h.Name, err)
	}
	if into.Kind != kindOfFile || into.Format < 1 {
		return foreign("its kind is %.100q", into.Kind)
	}
	if into.Format > Format {
		return &Error{
			Problem: fmt.Sprintf("the snapshot has format %d, written by replumb %.100q, and this replumb reads up to %d",
				into.Format, into.Replumb, Format),
			Hint: "use that version of replumb, or a later one",
		}
	}
	add(r.sum, h.Name, body)
	return nil
}

func (r *reader) end(body []byte, a *Archive) error {
	if _, err := r.tar.Next(); !errors.Is(err, io.EOF) {
		return damaged("there is something behind its end, or less than it: %v", err)
	}
	if _, err := io.Copy(io.Discard, r.packed); err != nil { // which compares the checksum of gzip
		return damaged("%v", err)
	}
	m := &a.Manifest
	if err := json.Unmarshal(body, m); err != nil {
		return damaged("%s: %v", manifestName, err)
	}
	if m.Entries != r.seen {
		return damaged("it has %d entries and not %d", r.seen, m.Entries)
	}
	if sum := hex.EncodeToString(r.sum.Sum(nil)); sum != m.SHA256 {
		return damaged("its checksum is %s and not %q", sum, m.SHA256)
	}
	for name, count := range a.objects.counts() {
		if m.Counts[name] != count {
			return damaged("it has %d of %s and not %d", count, name, m.Counts[name])
		}
	}
	return nil
}

// bounded ends a stream that never does.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("it has more than %d bytes", int64(maxTotal))
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.from.Read(p)
	b.left -= int64(n)
	return n, err
}
