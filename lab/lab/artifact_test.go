package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
	"testing/fstest"
)

func TestArchiveOfFiles(t *testing.T) {
	want := map[string]string{"install/kustomization.yaml": "resources: []\n", "moves/move.yaml": "kind: Migration\n"}
	files := fstest.MapFS{}
	for path, data := range want {
		files[path] = &fstest.MapFile{Data: []byte(data), Mode: 0o644}
	}
	archive, err := archived(files)
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(unpacked)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil || string(data) != want[h.Name] {
			t.Errorf("%s is %q, %v", h.Name, data, err)
		}
		delete(want, h.Name)
	}
	if len(want) > 0 {
		t.Errorf("the archive lacks %v", want)
	}
}
