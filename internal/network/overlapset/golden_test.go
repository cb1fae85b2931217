package overlapset

import (
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestGolden compares every object that would be made, and what would be removed, with
// testdata/golden. No cluster is needed.
func TestGolden(t *testing.T) {
	s := &Set{Migration: "m", Image: pull.Image{Name: "ghcr.io/replumb/replumb:v1", Secrets: []string{"registry"}}}
	var steps []engine.Step
	for _, g := range append(s.Install(), s.Remove()...) {
		steps = append(steps, g.Steps...)
	}
	golden.File(t, "testdata/golden/objects.txtar", migrationtest.Written(t, steps...))
}
