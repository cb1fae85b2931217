package agentset

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
)

var update = flag.Bool("update", false, "write golden files")

// TestGolden compares every object that would be made with testdata/golden. No cluster is needed.
func TestGolden(t *testing.T) {
	image := pull.Image{Name: "ghcr.io/replumb/replumb:v1"}
	golden(t, "objects", &Set{Migration: "m", Image: image, Domain: "cluster.local", Ranges: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16"),
	}})
	golden(t, "rolled", &Set{Migration: "m", Image: image, Roll: true, Lossy: true})
}

func golden(t *testing.T, name string, s *Set) {
	t.Helper()
	file := "testdata/golden/" + name + ".txtar"
	have := &txtar.Archive{}
	for _, g := range s.Install() {
		for _, step := range g.Steps {
			add(t, have, step)
		}
	}
	for _, step := range s.Remove() {
		add(t, have, step)
	}
	got := txtar.Format(have)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update to accept\ngot:\n%s", file, got)
	}
}

func add(t *testing.T, to *txtar.Archive, step engine.Step) {
	t.Helper()
	changes, err := engine.Preview(step)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", step.Title())
	for _, c := range changes {
		fmt.Fprintf(&b, "--- # %s %s\n", c.Verb, c.Object)
		if c.Body == nil {
			continue
		}
		body, err := yaml.Marshal(c.Body)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(body)
	}
	to.Files = append(to.Files, txtar.File{Name: step.ID(), Data: b.Bytes()})
}
