// Package release has what releases are built with. Its module is that of goreleaser, of which the product needs nothing.
package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

const root = "../../"

func load(t *testing.T) config.Project {
	t.Helper()
	project, err := config.Load(root + ".goreleaser.yaml") // which refuses fields that it does not know
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// TestEverySystem: a release is for those systems that the documents name.
func TestEverySystem(t *testing.T) {
	systems := map[string][]string{"replumb": {"linux", "darwin", "windows"}, "replumb-lab": {"linux"}}
	builds := load(t).Builds
	if len(builds) != len(systems) {
		t.Fatalf("%d builds", len(builds))
	}
	for _, b := range builds {
		if want := systems[b.ID]; !slices.Equal(b.Goos, want) {
			t.Errorf("%s: systems %q, want %q", b.ID, b.Goos, want)
		}
		if want := []string{"amd64", "arm64"}; !slices.Equal(b.Goarch, want) {
			t.Errorf("%s: processors %q, want %q", b.ID, b.Goarch, want)
		}
	}
}

// TestLinkedVariables: the linker sets variables that are there; of others it says nothing.
func TestLinkedVariables(t *testing.T) {
	flags := strings.Join(load(t).Builds[0].Ldflags, " ")
	ko, err := os.ReadFile(root + ".ko.yaml")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(root + "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(root + "internal/cli/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(body)
	}
	set := regexp.MustCompile(`-X github\.com/replumb/replumb/internal/cli\.(\w+)=`)
	for name, text := range map[string]string{".goreleaser.yaml": flags, ".ko.yaml": string(ko), "Makefile": string(makefile)} {
		found := set.FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s sets no variable", name)
		}
		for _, m := range found {
			if !strings.Contains(source.String(), "\nvar "+m[1]+" string") {
				t.Errorf("%s sets %s, which does not exist", name, m[1])
			}
		}
	}
}

// TestFilesAreThere: what archives take from the repository exists.
func TestFilesAreThere(t *testing.T) {
	for _, a := range load(t).Archives {
		for _, f := range a.Files {
			if strings.HasPrefix(f.Source, "build/") {
				continue // hooks make it
			}
			if _, err := os.Stat(root + f.Source); err != nil {
				t.Error(err)
			}
		}
	}
}
