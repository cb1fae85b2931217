// Package image makes container images out of static binaries, without a builder or a registry.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Image is one image to be: a reference and the binary that is its content.
type Image struct {
	Ref    string // for example "replumb.local/echo:lab"
	Binary string // path of a static binary on this machine
	Name   string // path of the binary inside the image, from its root, which is also the entry point
	// Links are further paths, from the root, by which the binary is called.
	Links []string
	// More are other binaries, by their path from the root.
	More map[string]string
	// MoreLinks are further paths, from the root, that lead to others, such as those in More.
	MoreLinks map[string]string
	// Args are what the binary is called with, unless a pod says otherwise.
	Args []string
	// Path is where programs are looked for by name. Default: /, where the binary is.
	Path string
	// User that it runs as, unless a pod says otherwise, such as 65532:65532. Default: root.
	User string
	// Roots is the path of a file of certificates on this machine: the authorities that programs in it trust. Default: none.
	Roots string
	// Arch is the processor that the binary is for. Default: this machine's.
	Arch string
}

// NonRoot is the user of images that need no root.
const NonRoot = "65532:65532"

// rootsPath is where Go programs, among others, look for authorities.
const rootsPath = "etc/ssl/certs/ca-certificates.crt"

// WriteLayout writes one image for several processors as an OCI layout into a directory, from where `crane push --index` takes it. It returns
// the digest by which the image is named, whichever processor a node has.
func WriteLayout(dir string, images []Image) (digest string, err error) {
	all := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		img, err := i.build()
		if err != nil {
			return "", fmt.Errorf("image for %s: %w", i.arch(), err)
		}
		all = mutate.AppendManifests(all, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.arch()}},
		})
	}
	hash, err := all.Digest()
	if err != nil {
		return "", fmt.Errorf("the digest of the image: %w", err)
	}
	if _, err := layout.Write(dir, all); err != nil {
		return "", fmt.Errorf("writing %s: %w", dir, err)
	}
	return hash.String(), nil
}

func (i Image) arch() string { return cmp.Or(i.Arch, runtime.GOARCH) }

// WriteTar writes the images into one archive that `ctr images import` and `docker load` accept.
func WriteTar(path string, images []Image) error {
	content := map[name.Tag]v1.Image{}
	for _, i := range images {
		tag, err := name.NewTag(i.Ref)
		if err != nil {
			return fmt.Errorf("image reference %q: %w", i.Ref, err)
		}
		img, err := i.build()
		if err != nil {
			return fmt.Errorf("image %s: %w", i.Ref, err)
		}
		content[tag] = img
	}
	if err := tarball.MultiWriteToFile(path, content); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func (i Image) build() (v1.Image, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.DockerManifestSchema2), layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", i.arch()
	config.Config.User = i.User
	config.Config.Entrypoint = []string{"/" + i.Name}
	config.Config.Cmd = i.Args
	config.Config.Env = []string{"PATH=" + cmp.Or(i.Path, "/")}
	return mutate.ConfigFile(img, config)
}

// layer is uncompressed: it is read once per node from local disk, where unpacking costs more than reading.
func (i Image) layer() (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// /tmp because programs expect one; binaries, executable by any user that the pod runs as.
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return nil, err
	}
	if err := addBinary(w, i.Name, i.Binary); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(i.More)) {
		if err := addBinary(w, name, i.More[name]); err != nil {
			return nil, err
		}
	}
	if i.Roots != "" {
		if err := addFile(w, rootsPath, i.Roots, 0o644); err != nil {
			return nil, err
		}
	}
	if err := i.addLinks(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return static.NewLayer(buf.Bytes(), types.DockerUncompressedLayer), nil
}

func (i Image) addLinks(w *tar.Writer) error {
	to := maps.Clone(i.MoreLinks)
	if to == nil {
		to = map[string]string{}
	}
	for _, link := range i.Links {
		to[link] = i.Name
	}
	for _, link := range slices.Sorted(maps.Keys(to)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: "/" + to[link], Mode: 0o777}); err != nil {
			return err
		}
	}
	return nil
}

func addBinary(w *tar.Writer, name, path string) error { return addFile(w, name, path, 0o755) }

func addFile(w *tar.Writer, name, path string, mode int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
