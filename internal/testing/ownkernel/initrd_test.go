package ownkernel

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestModulesOf: what a module needs comes before it, once.
func TestModulesOf(t *testing.T) {
	const dependencies = `kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/net/9p/9pnet-virtio.ko: kernel/net/9p/9pnet.ko
`
	got, err := modulesOf(dependencies, []string{"9p", "9pnet_virtio"})
	want := []string{
		"kernel/fs/netfs/netfs.ko", "kernel/fs/fscache/fscache.ko", "kernel/net/9p/9pnet.ko", "kernel/fs/9p/9p.ko", "kernel/net/9p/9pnet-virtio.ko",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if got, err := modulesOf(dependencies, []string{"overlay"}); err == nil {
		t.Errorf("a module that is not there: %v", got)
	}
}

// TestInitrd: each entry begins at a multiple of four, with its header.
func TestInitrd(t *testing.T) {
	root := t.TempDir()
	modules := filepath.Join(root, "lib", "modules", "6.1")
	if err := os.MkdirAll(modules, 0o755); err != nil {
		t.Fatal(err)
	}
	var dependencies []byte
	for _, name := range needed() {
		dependencies = append(dependencies, name+".ko:\n"...)
		if err := os.WriteFile(filepath.Join(modules, name+".ko"), []byte("odd"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{filepath.Join(modules, "modules.dep"): dependencies, filepath.Join(root, "first"): []byte("binary")} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(root, "initrd")
	if err := writeInitrd(file, filepath.Join(root, "first"), root, "6.1"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	entries := 0
	for at := 0; ; entries++ {
		next := bytes.Index(data[at:], []byte("070701"))
		if next < 0 {
			break
		}
		if (at+next)%4 != 0 {
			t.Errorf("entry %d begins at %d", entries, at+next)
		}
		at += next + 1
	}
	if want := len(needed()) + 3; entries != want || len(data)%4 != 0 {
		t.Errorf("%d entries in %d bytes, want %d", entries, len(data), want)
	}
}
