// Command sources packs the sources of the checkout it runs in, for replumb-lab to carry: go build -tags carried.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/source"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := component.SourceRoot()
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := source.Pack(root, &packed); err != nil {
		return err
	}
	path := filepath.Join(root, "lab", "source", source.ArchiveName)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, packed.Bytes()) {
		return nil
	}
	return os.WriteFile(path, packed.Bytes(), 0o644)
}
