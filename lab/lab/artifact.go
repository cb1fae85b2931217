package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The media types of an artifact that Flux takes for a source: https://github.com/fluxcd/pkg/blob/main/oci/client.go.
const (
	fluxConfig  types.MediaType = "application/vnd.cncf.flux.config.v1+json"
	fluxContent types.MediaType = "application/vnd.cncf.flux.content.v1.tar+gzip"
)

// PushFiles puts a tree of files into the lab's registry, as flux push artifact does. It replaces what has that name and tag.
func (l Addons) PushFiles(ctx context.Context, files fs.FS, as string) error {
	r, err := l.RequireRegistry()
	if err != nil {
		return err
	}
	to, err := name.NewTag(r.Host + "/" + as)
	if err != nil {
		return fmt.Errorf("name %q: %w", as, err)
	}
	archive, err := archived(files)
	if err != nil {
		return fmt.Errorf("archive of %s: %w", as, err)
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), fluxConfig)
	artifact, err = mutate.Append(artifact, mutate.Addendum{Layer: static.NewLayer(archive, fluxContent)})
	if err != nil {
		return fmt.Errorf("artifact %s: %w", as, err)
	}
	return l.push(ctx, r, to, func(options ...remote.Option) error { return remote.Write(to, artifact, options...) })
}

// PushLayout puts an OCI layout, an image for whatever processors it is, into the lab's registry, and returns the digest it has there.
func (l Addons) PushLayout(ctx context.Context, dir, as string) (digest string, err error) {
	r, err := l.RequireRegistry()
	if err != nil {
		return "", err
	}
	to, err := name.NewTag(r.Host + "/" + as)
	if err != nil {
		return "", fmt.Errorf("name %q: %w", as, err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", dir, err)
	}
	sum, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("OCI layout %s: %w", dir, err)
	}
	return sum.String(), l.push(ctx, r, to, func(options ...remote.Option) error { return remote.WriteIndex(to, index, options...) })
}

// archived is a tree of files as a compressed tar archive.
func archived(files fs.FS) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	if err := w.AddFS(files); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
