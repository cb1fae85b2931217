package podcidr

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/replumb/replumb/internal/spec"
)

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../../examples/pod-cidr/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spec.Parse(body)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := NewJob(Deps{}, m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
