package fleet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/spec"
)

// good is a Fleet that lines are replaced in.
const good = `apiVersion: replumb.dev/v1alpha1
kind: Fleet
metadata: {name: prod}
spec:
  migration: move.yaml
  clusters:
  - {name: a, context: a, with: {serviceCIDR: {to: [172.24.0.0/16]}}}
  - {name: b, context: b, kubeconfig: b.conf, with: {serviceCIDR: {to: [172.25.0.0/16]}}}
  waves:
  - {name: first, clusters: [a], soak: 30m}
  - {name: second, clusters: [b], parallel: 2}
  health: {exec: {command: [./healthy.sh, now]}}
`

func parse(text string) (*Fleet, error) {
	return Parse(spec.Source{Name: "fleet.yaml", Body: []byte(text), Dir: "/fleets"})
}

func TestParse(t *testing.T) {
	f, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != "prod" || f.Spec.Migration != "/fleets/move.yaml" || f.Spec.Clusters[1].Kubeconfig != "/fleets/b.conf" ||
		f.Spec.Clusters[0].Kubeconfig != "" || f.Spec.Health.Exec.Command[0] != "/fleets/healthy.sh" {
		t.Errorf("got %+v", f)
	}
	if w := f.Spec.Waves; w[0].soak.Minutes() != 30 || w[0].Parallel != 1 || w[1].Parallel != 2 ||
		f.WaveOf("b") != "second" || f.WaveOf("c") != "" {
		t.Errorf("got %+v", w)
	}
}

// TestParseRefuses: each thing that is wrong is an error of one line that names its field, with a
// hint.
func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ old, by, field, problem string }{
		"another kind":       {"kind: Fleet", "kind: Migration", "apiVersion, kind", "is not a Fleet"},
		"no name":            {"{name: prod}", "{}", "metadata.name", `"" is not a name`},
		"no migration":       {"migration: move.yaml", "migration: ''", "spec.migration", "is empty"},
		"an unknown field":   {"parallel: 2", "parallels: 2", "spec.waves[1].parallels", "unknown field"},
		"twice a field":      {"soak: 30m", "soak: 30m, soak: 1h", "file", "already set"},
		"another type":       {"soak: 30m", "soak: 30", "file", "number"},
		"no duration":        {"soak: 30m", "soak: soon", "spec.waves[0].soak", `"soon" is not a duration`},
		"a negative soak":    {"soak: 30m", "soak: -1m", "spec.waves[0].soak", "is not a duration"},
		"too many":           {"parallel: 2", "parallel: 65", "spec.waves[1].parallel", "not within"},
		"an empty wave":      {"name: second, clusters: [b]", "name: second, clusters: []", "spec.waves[1].clusters", "is empty"},
		"a wave twice":       {"name: second", "name: first", "spec.waves[1].name", "another wave's"},
		"an unknown cluster": {"clusters: [b]", "clusters: [b, c]", "spec.waves[1].clusters[1]", `no cluster "c"`},
		"in two waves":       {"clusters: [b]", "clusters: [b, a]", "spec.waves[1].clusters[1]", "in wave first already"},
		"in no wave":         {"clusters: [b], parallel", "clusters: [], parallel", "spec.clusters[1]", "in no wave"},
		"a cluster twice":    {"name: b, context: b, kubeconfig: b.conf", "name: a, context: b", "spec.clusters[1].name", "another cluster's"},
		"a context twice":    {"context: b, kubeconfig: b.conf", "context: a", "spec.clusters[1].context", "that of cluster a too"},
		"no context":         {"context: a,", "", "spec.clusters[0].context", "is empty"},
		"a bad name":         {"{name: a,", "{name: 'a b',", "spec.clusters[0].name", "is not a name"},
		"overlap":            {"  waves:", "  overlap: Never\n  waves:", "spec.overlap", `"Never" is not known`},
		"health of nothing":  {"{exec: {command: [./healthy.sh, now]}}", "{timeout: 1m}", "spec.health", "exactly one"},
		"no program":         {"[./healthy.sh, now]", "[]", "spec.health.exec.command", "is empty"},
		"no URL":             {"{exec: {command: [./healthy.sh, now]}}", "{http: {}}", "spec.health.http", "exactly one"},
		"a long call":        {"{exec: {command", "{timeout: 7h, exec: {command", "spec.health.timeout", "7h"},
		"two documents":      {"metadata: {name: prod}", "---\na: b", "file", "holds 2 documents"},
		"no YAML":            {"metadata: {name: prod}", "metadata: {name: prod", "file", "yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, tt.old, tt.by, 1)
			if text == good {
				t.Fatal("nothing was replaced")
			}
			_, err := parse(text)
			code, _ := fault.ExitCode(err)
			if err == nil || code != fault.ExitUsage || fault.Advice(err) == "" {
				t.Fatalf("got %v, exit code %d, hint %q", err, code, fault.Advice(err))
			}
			found := false
			for _, e := range each(err) {
				found = found || e.Field == tt.field && strings.Contains(e.Problem, tt.problem)
				if strings.Contains(e.Error(), "\n") || e.Hint == "" {
					t.Errorf("%q with hint %q", e, e.Hint)
				}
			}
			if !found {
				t.Errorf("got %v", err)
			}
		})
	}
}

func each(err error) []*spec.Error {
	var many *spec.Invalid
	if errors.As(err, &many) {
		return many.Errors
	}
	var one *spec.Error
	if errors.As(err, &one) {
		return []*spec.Error{one}
	}
	return nil
}

func TestManyErrorsAreThoseOfTheFleet(t *testing.T) {
	_, err := parse(strings.Replace(strings.Replace(good, "soak: 30m", "soak: soon", 1), "parallel: 2", "parallel: -1", 1))
	if err == nil || !strings.HasPrefix(err.Error(), "the Fleet has 2 errors\n") {
		t.Errorf("got %v", err)
	}
}

// FuzzParse: no file crashes it, and one that it takes has each cluster in one wave.
func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add("spec: {clusters: [null], waves: [{clusters: [null]}], health: {exec: null}}")
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := parse(text)
		if err != nil {
			if code, ok := fault.ExitCode(err); !ok || code != fault.ExitUsage {
				t.Errorf("%v", err)
			}
			return
		}
		in := map[string]int{}
		for _, w := range fleet.Spec.Waves {
			for _, name := range w.Clusters {
				in[name]++
			}
		}
		for _, c := range fleet.Spec.Clusters {
			if in[c.Name] != 1 || len(in) != len(fleet.Spec.Clusters) {
				t.Errorf("%v", in)
			}
		}
		_, _ = fleet.targets(spec.Source{Name: "m", Body: []byte(migration), Dir: "/m"})
	})
}

// TestExamples reads every Fleet in examples, with its Migration.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/fleet/fleet*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(spec.Source{Name: file, Body: body, Dir: filepath.Dir(file)})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		targets, err := f.Targets()
		if err != nil || len(targets) < 2 {
			t.Errorf("%s: %d targets, %v", file, len(targets), err)
		}
		if h := f.Spec.Health; h != nil && h.Exec != nil {
			if _, err := os.Stat(h.Exec.Command[0]); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
