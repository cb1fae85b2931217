//go:build apiserver && programs

package mirror

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestReaderSees: who may only look gets every finding, and what is missing to operate is one.
func TestReaderSees(t *testing.T) {
	f := setup(t)
	roles, err := f.job.Roles(t.Context())
	f.must(err)
	f.operator = migrationtest.Reader(t, f.source, roles)
	f.with(f.job.Migration)
	p, err := f.job.Look(t.Context())
	f.must(err)
	if !migrationtest.Says(p.Findings, "RP4001", "missing permission: ") {
		t.Errorf("findings: %+v", p.Findings)
	}
}

// TestUsualKinds: the roles in deploy have every kind of Kubernetes' own that a mirror reads.
func TestUsualKinds(t *testing.T) {
	f := setup(t)
	rules, err := copyrules.New(copyrules.Options{Migration: "m"})
	f.must(err)
	source, err := objectsync.Connect(f.source.Cluster)
	f.must(err)
	kinds, err := source.Reads(rules)
	f.must(err)
	for _, k := range kinds {
		own := !strings.Contains(k.Group, ".") || strings.HasSuffix(k.Group, ".k8s.io")
		if own && !slices.Contains(Usual(), k) {
			t.Errorf("%s is read, and not usual", k)
		}
	}
	for _, k := range Usual() {
		if !slices.Contains(kinds, k) {
			t.Errorf("%s is usual, and not read", k)
		}
	}
}

// TestNotIntoItself refuses a target that is the source.
func TestNotIntoItself(t *testing.T) {
	f := setup(t)
	f.target = f.source
	err := f.run(0, f.apply)
	var blocked *findings.BlockedError
	if !errors.As(err, &blocked) || !slices.ContainsFunc(blocked.Findings, func(c findings.Finding) bool { return c.Code == "RP4002" }) {
		t.Fatalf("got %v", err)
	}
}
