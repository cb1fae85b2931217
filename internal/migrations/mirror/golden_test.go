package mirror

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// looked is what a look at both clusters came to.
type looked struct {
	Inventory              Inventory `json:"survey"`
	Denied, DeniedInTarget []string
	// Freeze is why nothing can be frozen, Records why records cannot be changed.
	Freeze  string
	Records map[string]string
	// SourceNodes are those that agents are to be on, Absent are Secrets that are not there.
	SourceNodes []corev1.Node
	Absent      []string
	// AbsentInTarget are those of canaries.
	AbsentInTarget []string
}

// TestGolden reads a Migration and what a look at both clusters came to from
// testdata/golden/*.txtar, and compares what the checks find.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", func(t *testing.T, in map[string][]byte) golden.Sections {
		t.Helper()
		return golden.Sections{
			"findings": func() string { return migrationtest.Found(findings.Run(Checks(), input(t, in))) },
		}
	})
}

// TestEveryCheckFiresAndPasses: each has a golden file for both.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

func input(t *testing.T, in map[string][]byte) Input {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	var l looked
	if err := yaml.UnmarshalStrict(in["looked.yaml"], &l); err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	l.Inventory.Spec = job.Spec
	out := Input{
		Inventory:      &l.Inventory,
		Access:         migrationtest.Access(t, Roles(Usual()), l.Denied...),
		TargetAccess:   migrationtest.Access(t, TargetRoles(job.Spec.tries()), l.DeniedInTarget...),
		RecordProblems: map[string]error{},
		Image:          job.agents().Image().Name,
		Nodes:          l.SourceNodes,
		Reviewed:       migration.Answered(m, v1alpha1.AnnotationSingletons, reviewed),
	}
	if out.AbsentSecrets, err = job.absentSecrets(
		t.Context(),
		migrationtest.Lacking(l.Absent),
		migrationtest.Lacking(l.AbsentInTarget),
	); err != nil {
		t.Fatal(err)
	}
	if l.Freeze != "" {
		out.FreezeProblem = errors.New(l.Freeze)
	}
	for name, problem := range l.Records {
		out.RecordProblems[name] = errors.New(problem)
	}
	return out
}
