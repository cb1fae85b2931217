// Package golden compares what tests compute from txtar archives with what stands in these. With
// -update it is written there instead.
package golden

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write golden files") //nolint:gochecknoglobals // as flags of go test are

// Sections are what is computed, by the names of the files of an archive that they are compared
// with.
type Sections map[string]func() string

// Run runs a test for every archive that pattern matches. read is given its files, by name. Only
// sections that the archive has are computed, and it must have one.
func Run(t *testing.T, pattern string, read func(t *testing.T, files map[string][]byte) Sections) {
	t.Helper()
	archives, err := filepath.Glob(pattern)
	if err != nil || len(archives) == 0 {
		t.Fatalf("nothing is like %s: %v", pattern, err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { compare(t, name, read) })
	}
}

// File compares what a test computes with a whole file.
func File(t *testing.T, name string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update to accept\ngot:\n%s", name, got)
	}
}

func compare(t *testing.T, name string, read func(*testing.T, map[string][]byte) Sections) {
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range archive.Files {
		files[f.Name] = f.Data
	}
	differences, err := settle(archive, read(t, files))
	switch {
	case err != nil:
		t.Fatal(err)
	case *update:
		err = os.WriteFile(name, txtar.Format(archive), 0o600)
	case len(differences) > 0:
		err = fmt.Errorf("%s\nrun with -update to accept", strings.Join(differences, "\n"))
	}
	if err != nil {
		t.Error(err)
	}
}

// settle writes sections into an archive, and tells where it had something else. It fails if there
// is nothing to compare.
func settle(archive *txtar.Archive, sections Sections) (differences []string, err error) {
	compared := 0
	for i, f := range archive.Files {
		if sections[f.Name] == nil {
			continue
		}
		compared++
		got := sections[f.Name]()
		if got != string(f.Data) {
			differences = append(differences, fmt.Sprintf("%s differs\ngot:\n%s\nwant:\n%s", f.Name, got, f.Data))
		}
		archive.Files[i].Data = []byte(got)
	}
	if compared == 0 {
		return nil, errors.New("the archive has nothing to compare with")
	}
	return differences, nil
}
