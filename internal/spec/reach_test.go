package spec

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"github.com/replumb/replumb/api/v1alpha1"
)

// leaves are the fields of a schema that hold values, as paths without indices.
func leaves(path string, s *schema.Structural) (all []string) {
	switch {
	case s.Items != nil && len(s.Items.Properties) > 0:
		return leaves(path+"[]", s.Items)
	case len(s.Properties) > 0:
		for name, property := range s.Properties {
			all = append(all, leaves(path+"."+name, &property)...)
		}
		return all
	}
	return []string{path}
}

// TestEveryFieldIsSorted fails for a field that no one has thought of: does it have the operator's
// machine run, reach, read or write something, or DNS or nodes be changed with the operator's
// credentials? Then it is one of reaches, and its change needs consent. What has no effect beyond
// the cluster's own API is in testdata/near.txt.
func TestEveryFieldIsSorted(t *testing.T) {
	body, err := os.ReadFile("testdata/near.txt")
	if err != nil {
		t.Fatal(err)
	}
	near := strings.Fields(string(body))
	root := built().schema.Properties["spec"]
	all := leaves("spec", &root)
	for _, field := range all {
		_, far := effectOf(field)
		if far == slices.Contains(near, field) {
			t.Errorf("%s has to be in reach.go, or in testdata/near.txt, and not in both", field)
		}
	}
	for _, field := range near {
		if !slices.Contains(all, field) {
			t.Errorf("testdata/near.txt: there is no %s", field)
		}
	}
	for _, r := range reaches() {
		within := func(field string) bool { return field == r.field || strings.HasPrefix(field, r.field) }
		if !slices.ContainsFunc(all, within) {
			t.Errorf("reach.go: there is no %s", r.field)
		}
	}
}

// TestEveryActionReaches finds calls by their type, wherever they are.
func TestEveryActionReaches(t *testing.T) {
	var visit func(path string, typ reflect.Type)
	seen := 0
	visit = func(path string, typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer:
			visit(path, typ.Elem())
		case reflect.Slice:
			visit(path+"[]", typ.Elem())
		case reflect.Struct:
			if typ == reflect.TypeFor[v1alpha1.ExecAction]() || typ == reflect.TypeFor[v1alpha1.HTTPAction]() {
				for i := range typ.NumField() {
					name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
					if _, far := effectOf(path + "." + name); !far {
						t.Errorf("%s.%s is not in reach.go", path, name)
					}
					seen++
				}
				return
			}
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
				switch {
				case !f.IsExported():
				case name == "" && strings.Contains(options, "inline"):
					visit(path, f.Type)
				case !strings.Contains(f.Type.String(), "k8s.io"):
					visit(path+"."+name, f.Type)
				}
			}
		}
	}
	visit("spec", reflect.TypeFor[v1alpha1.MigrationSpec]())
	if seen < 10*5 {
		t.Errorf("%d fields of calls", seen)
	}
}

func TestDigestCoversWhatIsCalled(t *testing.T) {
	read := func(spec string) *v1alpha1.Migration {
		m, err := Parse(
			[]byte(
				"apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {serviceCIDR: {to: [172.24.0.0/16]}, " + spec + "}",
			),
		)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if d := Digest(read("batch: {size: 3}")); d != "" {
		t.Errorf("without calls: %s", d)
	}
	base := read("hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b]}}]")
	want := Digest(base)
	if !regexp.MustCompile("^[0-9a-f]{64}$").MatchString(want) {
		t.Errorf("digest %q", want)
	}
	for spec, same := range map[string]bool{
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b]}}], batch: {size: 3}":          true,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b]}, timeout: 3m}]":               true,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, c]}}]":                            false,
		"hooks: [{name: a, when: BeforePhase, exec: {command: ['/bin/a b']}}]":                           false,
		"hooks: [{name: a, when: AfterPhase, exec: {command: [/bin/a, b]}}]":                             false,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b], env: [TOKEN]}}]":              false,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b], publishOutput: true}}]":       false,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b]}}], notify: [{url: http://a}]": false,
		"hooks: [{name: a, when: BeforePhase, exec: {command: [/bin/a, b]}}], image: evil":               false,
	} {
		if got := Digest(read(spec)); (got == want) != same {
			t.Errorf("%s: digest %s", spec, got)
		}
	}
}

// TestDigestCoversWhatIsCopied: the target takes all that an administrator gives it. Agreement to a
// target is agreement to what gets there, by one Migration.
func TestDigestCoversWhatIsCopied(t *testing.T) {
	read := func(name, more string) string {
		m, err := Parse([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: " + name + "}\n" +
			"spec: {mirror: {target: {context: b}, redirect: {names: [{name: shop.example.com, type: A}], provider: {manual: {}}}, copy: {" + more + "}}}"))
		if err != nil {
			t.Fatal(err)
		}
		return Digest(m)
	}
	want := read("m", "namespaces: {include: [shop]}")
	if read("m", "namespaces: {include: [shop]}, parallel: 3") != want {
		t.Error("the pace is covered")
	}
	if read("other", "namespaces: {include: [shop]}") == want {
		t.Error("another Migration has the same digest")
	}
	for _, more := range []string{
		"namespaces: {include: [shop, pay]}",
		"namespaces: {include: [shop]}, kinds: {include: [secrets]}",
		"namespaces: {include: [shop]}, existing: Overwrite",
		"namespaces: {include: [shop]}, selector: {matchLabels: {a: b}}",
		"namespaces: {include: [shop]}, registries: [{from: a.example.com, to: b.example.com, credentials: {namespace: kube-system, name: x}}]",
		"namespaces: {include: [shop]}, transforms: [{kinds: [clusterrolebindings], jsonPatch: '[]'}]",
	} {
		if read("m", more) == want {
			t.Errorf("not covered: %s", more)
		}
	}
}

func TestCallsShowNoSecretOfAURL(t *testing.T) {
	c := Call{Field: "spec.notify[0].url", Effect: Connects, Value: "https://user:pass@hooks.example.com/secret?token=x"}
	if got := c.String(); got != `spec.notify[0].url connects to "https://hooks.example.com/..."` {
		t.Error(got)
	}
	c = Call{Field: "spec.hooks[0].exec.command", Effect: Runs, Value: []any{"/bin/a", "\x1b[31m"}}
	if got := c.String(); strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}

func TestLocate(t *testing.T) {
	m := &v1alpha1.Migration{Spec: v1alpha1.MigrationSpec{
		Hooks: []v1alpha1.Hook{
			{Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"./a.sh", "./b"}}}},
			{Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"/bin/a"}}}},
			{Action: v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"terraform"}}}},
		},
		Nodes: &v1alpha1.NodesSpec{ControlPlane: &v1alpha1.ControlPlaneSpec{Etcd: v1alpha1.EtcdSpec{CAFile: "ca.crt", KeyFile: "/k"}}},
	}}
	Locate(m, "/srv/moves")
	var got []string
	for _, h := range m.Spec.Hooks {
		got = append(got, h.Exec.Command...)
	}
	etcd := m.Spec.Nodes.ControlPlane.Etcd
	got = append(got, etcd.CAFile, etcd.KeyFile, etcd.SnapshotFile)
	if want := []string{"/srv/moves/a.sh", "./b", "/bin/a", "terraform", "/srv/moves/ca.crt", "/k", ""}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	PassEnv(m, []string{"TOKEN", "TOKEN"})
	if env := m.Spec.Hooks[2].Exec.Env; !slices.Equal(env, []string{"TOKEN"}) {
		t.Errorf("env %q", env)
	}
}
