package nodes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../../examples/nodes/*.yaml")
	more, _ := filepath.Glob("../../../examples/nodes/*/migration.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range append(files, more...) {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spec.Parse(body)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := NewJob(migration.Deps{}, m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
