package image

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestWriteTar(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "built")
	if err := os.WriteFile(binary, []byte("the binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "images.tar")
	refs := []string{"replumb.local/a:lab", "replumb.local/b:lab"}
	if err := WriteTar(archive, []Image{{Ref: refs[0], Binary: binary, Name: "a"}, {Ref: refs[1], Binary: binary, Name: "b"}}); err != nil {
		t.Fatal(err)
	}
	for i, ref := range refs {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(archive, &tag)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"/" + []string{"a", "b"}[i]}
		if !slices.Equal(config.Config.Entrypoint, want) || config.OS != "linux" {
			t.Errorf("%s: entry point %v on %s, want %v on linux", ref, config.Config.Entrypoint, config.OS, want)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%s: %d layers, %v", ref, len(layers), err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		if got := fileIn(t, content, want[0][1:]); got != "the binary" {
			t.Errorf("%s: the binary is %q", ref, got)
		}
	}
	if err := WriteTar(archive, []Image{{Ref: "not a reference", Binary: binary}}); err == nil {
		t.Error("a bad reference was taken")
	}
}

// TestSeveralNames sees that one binary is called by several names, and is not alone.
func TestSeveralNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"built", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("the binary "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := Image{
		Ref: "replumb.local/a:lab", Binary: filepath.Join(dir, "built"), Name: "opt/bin/a", Links: []string{"bin/b"},
		More: map[string]string{"opt/bin/c": filepath.Join(dir, "other")},
	}.layer()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"opt/bin/a": "the binary built", "opt/bin/c": "the binary other"} {
		content, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		if got := fileIn(t, content, path); got != want {
			t.Errorf("%s is %q", path, got)
		}
	}
	content, err := layer.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("bin/b is not in the layer: %v", err)
		}
		if h.Name == "bin/b" {
			if h.Typeflag != tar.TypeSymlink || h.Linkname != "/opt/bin/a" {
				t.Errorf("bin/b leads to %q", h.Linkname)
			}
			return
		}
	}
}

// fileIn returns the content of a file of a layer, which must be executable.
func fileIn(t *testing.T, layer io.Reader, path string) string {
	t.Helper()
	for r := tar.NewReader(layer); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s is not in the layer: %v", path, err)
		}
		if h.Name != path {
			continue
		}
		if h.Mode != 0o755 && path != rootsPath {
			t.Errorf("%s has mode %o", path, h.Mode)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

// TestLayout sees that each processor has its binary, and that the image is no one's who is root.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	var images []Image
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, []byte("the roots"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		binary := filepath.Join(dir, arch)
		if err := os.WriteFile(binary, []byte("for "+arch), 0o600); err != nil {
			t.Fatal(err)
		}
		images = append(images, Image{Binary: binary, Name: "a", Arch: arch, User: NonRoot, Roots: roots})
	}
	out := filepath.Join(dir, "out")
	digest, err := WriteLayout(out, images)
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(out)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if hash, _ := index.Digest(); err != nil || len(manifest.Manifests) != 2 || hash.String() != digest {
		t.Fatalf("%d images by %s, %v", len(manifest.Manifests), digest, err)
	}
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Config.User != NonRoot || config.Architecture != m.Platform.Architecture {
			t.Errorf("%s: %+v, %v", m.Platform, config, err)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		for file, want := range map[string]string{"a": "for " + m.Platform.Architecture, rootsPath: "the roots"} {
			content, err := layers[0].Uncompressed()
			if err != nil {
				t.Fatal(err)
			}
			if got := fileIn(t, content, file); got != want {
				t.Errorf("%s: %s is %q", m.Platform, file, got)
			}
		}
	}
}

// TestMoreThanABinary has an image with other files, links between them, arguments, and a path to look along.
func TestMoreThanABinary(t *testing.T) {
	dir := t.TempDir()
	binary, tool := filepath.Join(dir, "built"), filepath.Join(dir, "tool")
	for path, content := range map[string]string{binary: "the binary", tool: "the tool"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	img, err := Image{
		Ref: "replumb.local/a:lab", Binary: binary, Name: "a", Links: []string{"b"}, Args: []string{"pause"}, Path: "/usr/bin:/",
		More: map[string]string{"usr/bin/tool": tool}, MoreLinks: map[string]string{"bin/sh": "usr/bin/tool"},
	}.build()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Config.Cmd, []string{"pause"}) || !slices.Equal(config.Config.Env, []string{"PATH=/usr/bin:/"}) {
		t.Errorf("it is called with %v in %v", config.Config.Cmd, config.Config.Env)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			links[h.Name] = h.Linkname
		}
	}
	if len(links) != 2 || links["b"] != "/a" || links["bin/sh"] != "/usr/bin/tool" {
		t.Errorf("links are %v", links)
	}
}
