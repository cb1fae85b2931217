// Package source packs the sources of replumb that labs are built from, and unpacks those that a program carries, for where there is no
// checkout.
package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNone is that a program carries no sources: it was built by go build, without what make build packs.
var ErrNone = errors.New("this program carries no sources to build labs from")

// ArchiveName is the file in this folder that the build tag carried embeds.
const ArchiveName = "source.tar.gz"

// parts are what components, images and programs of machines are built from: the product, the lab, and what they embed.
func parts() []string { return []string{"go.mod", "go.sum", "api", "cmd", "internal", "deploy", "lab"} }

// Pack writes the sources of a checkout as a compressed tar archive, without tests. The same sources make the same archive.
func Pack(root string, to io.Writer) error {
	compressed := gzip.NewWriter(to)
	w := tar.NewWriter(compressed)
	for _, part := range parts() {
		err := filepath.WalkDir(filepath.Join(root, part), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case !d.Type().IsRegular(), strings.HasSuffix(path, "_test.go"), d.Name() == ArchiveName:
				return nil
			}
			return add(w, root, path)
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

func add(w *tar.Writer, root, path string) error {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// Carried unpacks the sources that this program carries below a folder, if they are not there yet, and returns their root. It fails with
// ErrNone if there are none.
func Carried(below string) (string, error) { return unpacked(archive(), below) }

func unpacked(archive []byte, below string) (string, error) {
	if len(archive) == 0 {
		return "", ErrNone
	}
	sum := sha256.Sum256(archive)
	dir := filepath.Join(below, "sources-"+hex.EncodeToString(sum[:])[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(below, ".sources-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := unpack(archive, tmp); err != nil {
		return "", fmt.Errorf("the sources that this program carries: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil && !exists(dir) { // another process may have been first
		return "", err
	}
	return dir, nil
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

func unpack(archive []byte, dir string) error {
	uncompressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	r := tar.NewReader(uncompressed)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !slices.Contains(parts(), strings.SplitN(h.Name, "/", 2)[0]) {
			return fmt.Errorf("%q is none of them", h.Name)
		}
		if err := root.MkdirAll(filepath.Dir(h.Name), 0o755); err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := root.WriteFile(h.Name, data, 0o644); err != nil {
			return err
		}
	}
}
