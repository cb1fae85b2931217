package ownkernel

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// needed are the modules by which the machine reaches the files of its host.
func needed() []string { return []string{"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net"} }

// modulesOf are the files of modules, each behind those that it needs, by modules.dep(5).
func modulesOf(dependencies string, names []string) ([]string, error) {
	needs := map[string][]string{}
	byName := map[string]string{}
	for line := range strings.Lines(dependencies) {
		file, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			needs[file] = strings.Fields(rest)
			byName[strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")] = file
		}
	}
	var all []string
	for _, name := range names {
		file, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		further := slices.Clone(needs[file])
		slices.Reverse(further) // depmod names what is to be loaded first last
		for _, f := range append(further, file) {
			if !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// writeInitrd writes an archive with a binary as the first process, and the modules that it needs
// (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
func writeInitrd(to, binary, root, version string) error {
	dir := filepath.Join(root, "lib", "modules", version)
	dependencies, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return err
	}
	modules, err := modulesOf(string(dependencies), needed())
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	a := archive{out: out}
	a.entry("dev", 0o040755, nil)
	a.entry("init", 0o100755, func() ([]byte, error) { return os.ReadFile(binary) })
	for i, m := range modules {
		a.entry(fmt.Sprintf("%02d.ko", i), 0o100644, func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, m)) })
	}
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

type archive struct {
	out io.Writer
	n   int
	err error
}

func (a *archive) entry(name string, mode int, read func() ([]byte, error)) {
	var data []byte
	if a.err == nil && read != nil {
		data, a.err = read()
	}
	if a.err != nil {
		return
	}
	a.n++
	header := "070701"
	for _, field := range []int{a.n, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0} {
		header += fmt.Sprintf("%08x", field)
	}
	header += name + "\x00"
	header += strings.Repeat("\x00", -len(header)&3)
	_, a.err = io.WriteString(a.out, header)
	if a.err == nil {
		_, a.err = a.out.Write(append(data, make([]byte, -len(data)&3)...))
	}
}
