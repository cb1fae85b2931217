package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpen lays hierarchies out as files, since a machine has only one kind.
func TestOpen(t *testing.T) {
	tests := []struct {
		name  string
		files []string
		roots []string
		v2    bool
		of2   string // the folder of group /a of version 2
		fails bool
	}{
		{name: "v2", files: []string{"cgroup.controllers", "cgroup.procs"}, roots: []string{"."}, v2: true, of2: "a"},
		{name: "v1", files: []string{"memory/cgroup.procs", "pids/cgroup.procs"}, roots: []string{"memory", "pids"}},
		{
			name:  "hybrid",
			files: []string{"memory/cgroup.procs", "unified/cgroup.procs", "unified/cgroup.controllers"},
			roots: []string{"memory", "unified"}, of2: "unified/a",
		},
		{name: "none", files: []string{"something/else"}, fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mount := t.TempDir()
			for _, f := range tt.files {
				write(t, filepath.Join(mount, f), "")
			}
			tree, err := openAt(mount)
			if (err != nil) != tt.fails {
				t.Fatalf("openAt: %v", err)
			}
			if err != nil {
				return
			}
			if tree.v2 != tt.v2 || len(tree.roots) != len(tt.roots) {
				t.Fatalf("got %+v, want roots %v, v2 %v", tree, tt.roots, tt.v2)
			}
			for i, root := range tt.roots {
				if want := filepath.Join(mount, root); tree.roots[i] != want {
					t.Errorf("root %d is %s, want %s", i, tree.roots[i], want)
				}
			}
			unified, err := tree.Unified("/a")
			if want := filepath.Join(mount, tt.of2); (err == nil) != (tt.of2 != "") || (err == nil && unified != want) {
				t.Errorf("group /a of version 2 is %q, %v, want %q", unified, err, tt.of2)
			}
		})
	}
}

// TestPrefer writes what each version has of processor time, and nothing where a hierarchy has none.
func TestPrefer(t *testing.T) {
	for name, files := range map[string][]string{
		"v2": {"cgroup.controllers", "pods/cpu.weight=800"},
		"v1": {"cpu/cgroup.procs", "cpu/pods/cpu.shares=8192", "memory/cgroup.procs", "memory/pods/memory.limit=0"},
	} {
		mount := t.TempDir()
		for _, f := range files {
			path, _, _ := strings.Cut(f, "=")
			write(t, filepath.Join(mount, path), "0")
		}
		tree, err := openAt(mount)
		if err == nil {
			err = tree.Prefer("/pods", 8)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, f := range files {
			path, want, written := strings.Cut(f, "=")
			if got, err := os.ReadFile(filepath.Join(mount, path)); written && (err != nil || string(got) != want) {
				t.Errorf("%s: %s is %s, %v, want %s", name, path, got, err, want)
			}
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDestroyRefusesTheRoot(t *testing.T) {
	tree := &Tree{roots: []string{t.TempDir()}}
	for _, path := range []string{"", "/", "//"} {
		if err := tree.Destroy(t.Context(), path); err == nil {
			t.Errorf("Destroy(%q) did not refuse", path)
		}
	}
}
