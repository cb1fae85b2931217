package component

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// compiler stands in for the go command: it notes how it was called, makes a program named after the folder, and fails in the folder bad.
const compiler = `#!/bin/sh
echo "$PWD $*" >> "$CALLS"
case $PWD in */bad) echo "it does not compile"; exit 1 ;; esac
echo program > "$3$(basename "$PWD")"
`

// played is a Builder of components without code, and what it says.
func played(t *testing.T, names ...string) (b *Builder, components []Component, said func() string) {
	t.Helper()
	root := t.TempDir()
	write := func(mode os.FileMode, content string, path ...string) {
		file := filepath.Join(append([]string{root}, path...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(0o755, compiler, "bin", "go")
	for _, name := range names {
		write(0o644, "module lab/"+name+"\n\nrequire example.org/"+name+" v1.2.3\n", "src", name, "go.mod")
		components = append(
			components,
			Component{Name: name, Module: "example.org/" + name, Packages: []string{"."}, Aliases: []string{name + "-too"}},
		)
	}
	write(0o644, "", "cache", "calls")
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	t.Setenv("CALLS", filepath.Join(root, "cache", "calls"))
	var mu sync.Mutex
	var lines []string
	b = &Builder{Source: filepath.Join(root, "src"), Cache: filepath.Join(root, "cache"), Progress: func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, args...))
	}}
	return b, components, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(lines, "\n")
	}
}

// TestBuild builds three components, and none of them again.
func TestBuild(t *testing.T) {
	b, components, said := played(t, "one", "two", "three")
	for range 2 {
		dirs, err := b.Build(t.Context(), components...)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range components {
			for _, name := range []string{c.Name, c.Name + "-too"} {
				if data, err := os.ReadFile(filepath.Join(dirs[c.Name], name)); err != nil || string(data) != "program\n" {
					t.Errorf("%s is %q, %v", name, data, err)
				}
			}
		}
	}
	calls, err := os.ReadFile(os.Getenv("CALLS"))
	if err != nil || strings.Count(string(calls), "\n") != 3 || !strings.Contains(string(calls), "-dwarf=false") {
		t.Errorf("the go command was called so: %s, %v", calls, err)
	}
	for _, want := range []string{"building one, two, three: less than a minute", "built one 1.2.3 in", "built two 1.2.3 in", "built three 1.2.3 in"} {
		if !strings.Contains(said(), want) {
			t.Errorf("it did not say %q, but:\n%s", want, said())
		}
	}
}

// TestBuildFails: the error names the component and what the compiler said, and nothing is left that could pass for a build.
func TestBuildFails(t *testing.T) {
	b, components, _ := played(t, "good", "bad")
	_, err := b.Build(t.Context(), components...)
	if err == nil || !strings.Contains(err.Error(), "building component bad") || !strings.Contains(err.Error(), "it does not compile") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.Cache, "bad-*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
