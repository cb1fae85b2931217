package fleet

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/spec"
)

// migration has no target of its own: each cluster names it.
const migration = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  serviceCIDR: {networks: [10.20.0.0/16]}
  batch: {size: 20}
  hooks: [{name: a, when: AfterBatch, exec: {command: [./hook.sh]}}]
`

func targetsOf(fleet, migration string) ([]*ClusterTarget, error) {
	f, err := parse(fleet)
	if err != nil {
		return nil, err
	}
	return f.targets(spec.Source{Name: "move.yaml", Body: []byte(migration), Dir: "/migrations"})
}

// TestMerge is the table of RFC 7386, appendix A.
func TestMerge(t *testing.T) {
	for _, tt := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		var into, before, patch, want any
		for i, to := range []*any{&into, &patch, &want} {
			if err := json.Unmarshal([]byte(tt[i]), to); err != nil {
				t.Fatal(err)
			}
		}
		_ = json.Unmarshal([]byte(tt[0]), &before)
		if got := merge(into, patch); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(into, before) {
			t.Errorf("%s with %s is %v, want %v; the first is %v", tt[0], tt[1], got, want, into)
		}
	}
}

func TestTargets(t *testing.T) {
	all, err := targetsOf(strings.Replace(good, "[172.25.0.0/16]}", "[172.25.0.0/16], networks: null}, batch: {size: 5}", 1), migration)
	if err != nil {
		t.Fatal(err)
	}
	a, b := all[0].Migration.Spec, all[1].Migration.Spec
	if a.ServiceCIDR.To[0] != "172.24.0.0/16" || len(a.ServiceCIDR.Networks) != 1 || a.Batch.Size != 20 {
		t.Errorf("a: %+v", a)
	}
	if b.ServiceCIDR.To[0] != "172.25.0.0/16" || len(b.ServiceCIDR.Networks) != 0 || b.Batch.Size != 5 {
		t.Errorf("b: %+v", b)
	}
	if all[0].Takes() != "172.24.0.0/16" || all[1].Wave != "second" || all[0].Dir != "/migrations" {
		t.Errorf("%+v", all[0])
	}
	// The program reads it in the folder that relative paths are from.
	if !strings.Contains(string(all[0].Manifest), `"./hook.sh"`) || a.Hooks[0].Exec.Command[0] != "/migrations/hook.sh" {
		t.Errorf("%s", all[0].Manifest)
	}
}

func TestTargetsRefuses(t *testing.T) {
	const pods = "with: {serviceCIDR: null, podCIDR: {to: [172.24.128.0/17], canary: {mode: Disabled}}}"
	const second = "with: {serviceCIDR: {to: [172.25.0.0/16]}}"
	bound := strings.Replace(migration, "{name: move}", "{name: move, annotations: {replumb.dev/cluster: u}}", 1)
	for name, tt := range map[string]struct {
		old, by, migration, want string
	}{
		"the same range": {
			"172.25.0.0/16", "172.24.0.0/16", migration, "spec.clusters[1].with: cluster b gets 172.24.0.0/16, and so does cluster a",
		},
		"a part of it": {
			"172.25.0.0/16", "172.24.8.0/24", migration, "cluster b gets 172.24.8.0/24, which overlaps 172.24.0.0/16 of cluster a",
		},
		"pods in it": {second, pods, migration, "cluster b gets 172.24.128.0/17, which overlaps 172.24.0.0/16 of cluster a"},
		"the same by the Migration": {
			", " + second, "", strings.Replace(migration, "{networks", "{to: [172.24.0.0/16], networks", 1), "and so does cluster a",
		},
		"an unknown field": {"{to: [172.25", "{brigde: Auto, to: [172.25", migration, `cluster b: spec.serviceCIDR.brigde: unknown field`},
		"no target":        {", " + second, "", migration, "cluster b: spec.serviceCIDR.to: is empty"},
		"bound":            {"", "", bound, "binds it"},
		"another kind":     {"", "", "kind: Pod\napiVersion: v1", "is not a Migration"},
		"no object":        {"", "", "[]", "spec.migration: holds no object"},
		"two Migrations":   {"", "", migration + "---\n" + migration, "spec.migration: file: holds 2 documents"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := targetsOf(strings.Replace(good, tt.old, tt.by, 1), tt.migration)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	allowed := strings.Replace(strings.Replace(good, "172.25.0.0/16", "172.24.0.0/16", 1), "  waves:", "  overlap: Allow\n  waves:", 1)
	if _, err := targetsOf(allowed, migration); err != nil {
		t.Errorf("overlap: Allow: %v", err)
	}
}

func TestPick(t *testing.T) {
	f, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		waves, clusters, want []string
	}{
		"all":       {nil, nil, []string{"a", "b"}},
		"a wave":    {[]string{"second"}, nil, []string{"b"}},
		"a cluster": {nil, []string{"a"}, []string{"a"}},
		"neither":   {[]string{"second"}, []string{"a"}, nil},
	} {
		var got []string
		for _, w := range f.Pick(tt.waves, tt.clusters).Spec.Waves {
			got = append(got, w.Clusters...)
		}
		if !reflect.DeepEqual(got, tt.want) || len(f.Spec.Waves) != 2 {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
