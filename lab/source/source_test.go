package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func packed(t *testing.T) []byte {
	t.Helper()
	var archive bytes.Buffer
	if err := Pack(filepath.Join("..", ".."), &archive); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// TestPackAndUnpack unpacks what was packed, once, where it builds.
func TestPackAndUnpack(t *testing.T) {
	archive := packed(t)
	if !bytes.Equal(archive, packed(t)) {
		t.Error("the same sources make two archives")
	}
	below := t.TempDir()
	root, err := unpacked(archive, below)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := unpacked(archive, below); err != nil || again != root {
		t.Errorf("a second time it is in %s, %v", again, err)
	}
	if left, _ := filepath.Glob(filepath.Join(below, ".*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ArchiveName) {
			t.Errorf("%s is packed", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"cmd/replumb/main.go", "lab/components/cni/go.mod", "lab/lab/addons.yaml", "deploy/crds/embed.go"} {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(below, "pause"), "./images/pause")
	cmd.Dir, cmd.Env = filepath.Join(
		root,
		"lab",
	), append(
		os.Environ(),
		"GOWORK=off",
		"CGO_ENABLED=0",
	) // with make's flags, for its compiled libraries
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("it does not build: %v\n%s", err, out)
	}
}

func TestNoneAreCarried(t *testing.T) {
	if _, err := unpacked(nil, t.TempDir()); !errors.Is(err, ErrNone) {
		t.Errorf("without an archive: %v", err)
	}
}

// TestStrangeArchives leave nothing behind.
func TestStrangeArchives(t *testing.T) {
	for _, name := range []string{"../api/outside", "/api/outside", "outside", "api/../../outside"} {
		var archive bytes.Buffer
		compressed := gzip.NewWriter(&archive)
		w := tar.NewWriter(compressed)
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644}), w.Close(), compressed.Close()); err != nil {
			t.Fatal(err)
		}
		below := t.TempDir()
		if root, err := unpacked(archive.Bytes(), below); err == nil {
			t.Errorf("%s was unpacked to %s", name, root)
		}
		if left, err := os.ReadDir(below); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", name, left, err)
		}
	}
	if _, err := unpacked([]byte("no archive"), t.TempDir()); err == nil {
		t.Error("what is no archive was unpacked")
	}
}
