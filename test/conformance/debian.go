package conformance

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debian finds programs of this machine, with the libraries they need, for an image of a name each: what is at which path from its root.
func debian(programs map[string]string) (map[string]string, error) {
	files := map[string]string{}
	for as, program := range programs {
		path, err := exec.LookPath(program)
		if err != nil {
			path, err = exec.LookPath(filepath.Join("/usr/sbin", program))
		}
		if err != nil {
			return nil, fmt.Errorf("%w\nhint: hack/deps.sh %s", err, program)
		}
		files["usr/bin/"+as] = path
		libraries, err := librariesOf(path)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			files[strings.TrimPrefix(library, "/")] = library
		}
	}
	return files, nil
}

// librariesOf are the paths at which a program has its libraries, and the loader that finds them; none for one that is static.
func librariesOf(program string) ([]string, error) {
	dynamic, err := isDynamic(program)
	if err != nil || !dynamic {
		return nil, err
	}
	out, err := exec.CommandContext(context.Background(), "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	return parseLibraries(string(out))
}

func isDynamic(program string) (bool, error) {
	f, err := os.Open(program)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	parsed, err := elf.NewFile(f)
	if err != nil {
		return false, fmt.Errorf("%s: %w", program, err)
	}
	for _, p := range parsed.Progs {
		if p.Type == elf.PT_INTERP {
			return true, nil
		}
	}
	return false, nil
}

// parseLibraries reads what ldd prints: lines such as "libc.so.6 => /lib/libc.so.6 (0x...)", and the loader as a path alone.
func parseLibraries(printed string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(printed) {
		name, found, hasPath := strings.Cut(strings.TrimSpace(line), " => ")
		if hasPath {
			name = found
		}
		path, _, _ := strings.Cut(name, " (")
		switch {
		case strings.HasPrefix(path, "/"):
			libraries = append(libraries, path)
		case hasPath:
			return nil, fmt.Errorf("ldd finds no library: %s", strings.TrimSpace(line))
		}
	}
	return libraries, nil
}
