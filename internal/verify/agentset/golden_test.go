package agentset

import (
	"net/netip"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestGolden compares every object that would be made with testdata/golden. No cluster is needed.
func TestGolden(t *testing.T) {
	image := pull.Image{Name: "ghcr.io/replumb/replumb:v1"}
	for name, s := range map[string]*Set{
		"objects": {Migration: "m", Image: image, Domain: "cluster.local", Ranges: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16"),
		}},
		"rolled": {Migration: "m", Image: image, Roll: true, Lossy: true},
	} {
		var steps []engine.Step
		for _, g := range s.Install() {
			steps = append(steps, g.Steps...)
		}
		golden.File(t, "testdata/golden/"+name+".txtar", migrationtest.Written(t, append(steps, s.Remove()...)...))
	}
}
