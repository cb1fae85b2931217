package spec

import (
	"errors"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

var update = flag.Bool("update", false, "write testdata/fixed.txt")

func TestMerge(t *testing.T) {
	recorded := migration(full())
	recorded.Spec.ServiceCIDR.From = []string{"10.96.0.0/16"} // was worked out when it began
	Default(recorded)
	given := migration(full())
	given.Spec.ServiceCIDR.APIServers = []string{"192.0.2.1:6443"}
	given.Spec.ServiceCIDR.GateWait = duration(2 * time.Hour)
	given.Spec.Batch.Size = 20
	given.Spec.Notify = nil
	given.Spec.Hooks[1].HTTP.URL = "https://example.com/other-" + secret
	given.Spec.Desired = v1alpha1.DesiredApplied
	Default(given)
	effective, changes, err := Merge(recorded, given)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(effective.Spec.ServiceCIDR.From, recorded.Spec.ServiceCIDR.From) || effective.Spec.Batch.Size != 20 {
		t.Errorf("goes by %+v", effective.Spec)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.String())
	}
	want := []string{
		"spec.batch.size: 10 -> 20",
		"spec.hooks[1].http.url: (not shown) -> (not shown)",
		`spec.notify[0].format: "Slack" -> -`,
		`spec.notify[0].onFailure: "Continue" -> -`,
		`spec.notify[0].timeout: "10s" -> -`,
		"spec.notify[0].urlFromEnv: (not shown) -> -",
		`spec.serviceCIDR.apiServers: - -> ["192.0.2.1:6443"]`,
		`spec.serviceCIDR.gateWait: "1h0m0s" -> "2h0m0s"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes are\n%s", strings.Join(got, "\n"))
	}
}

func TestMergeRefuses(t *testing.T) {
	recorded := migration(full())
	Default(recorded)
	for _, tt := range []struct {
		field  string
		change func(*v1alpha1.MigrationSpec)
	}{
		{"spec.serviceCIDR.to", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.To = []string{"172.25.0.0/16"} }},
		{"spec.serviceCIDR.mode", func(s *v1alpha1.MigrationSpec) { s.ServiceCIDR.Mode = v1alpha1.ModeExtend }},
		{"spec", func(s *v1alpha1.MigrationSpec) {
			s.ServiceCIDR, s.PodCIDR = nil, &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}}
		}},
	} {
		given := migration(full())
		tt.change(&given.Spec)
		Default(given)
		_, _, err := Merge(recorded, given)
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Field != tt.field || wrong.Hint == "" {
			t.Errorf("%s: got %v", tt.field, err)
		}
	}
}

// TestMirrorMayChangeUntilItServes: whatever of a mirror can be wrong, but for its target, can be
// corrected until the first name leads there.
func TestMirrorMayChangeUntilItServes(t *testing.T) {
	mirror := func(text string) *v1alpha1.Migration {
		m, err := Parse([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {mirror: {" + text + "}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		Default(m)
		return m
	}
	const provider = "provider: {manual: {}}"
	for field, texts := range map[string][2]string{
		"spec.mirror.target":          {"target: {context: a}", "target: {context: b}"},
		"spec.mirror.copy.nodePorts":  {"target: {context: a}", "target: {context: a}, copy: {nodePorts: Strip}"},
		"spec.mirror.copy.namespaces": {"target: {context: a}", "target: {context: a}, copy: {namespaces: {include: [shop]}}"},
		"spec.mirror.copy.transforms": {"target: {context: a}, copy: {transforms: [{replicas: 1}]}", "target: {context: a}"},
		"spec.mirror.hosts":           {"target: {context: a}, hosts: [{name: a.example.com, alias: b.example.com}]", "target: {context: a}"},
		"spec.mirror.singletons":      {"target: {context: a}", "target: {context: a}, singletons: {cronJobs: Leave}"},
		"spec.mirror.certificates":    {"target: {context: a}", "target: {context: a}, certificates: Leave"},
		"spec.mirror.redirect.names":  {"target: {context: a}", "target: {context: a}, redirect: {names: [{name: a.example.com}], " + provider + "}"},
		"spec.mirror.redirect.to":     {"target: {context: a}, redirect: {to: [192.0.2.1]}", "target: {context: a}, redirect: {to: [192.0.2.2]}"},
		"spec.mirror.copy.registries": {"target: {context: a}", "target: {context: a}, copy: {registries: [{from: a, to: b}]}"},
		"spec.mirror.copy.selector":   {"target: {context: a}, copy: {selector: {matchLabels: {a: b}}}", "target: {context: a}"},
		"spec.mirror.copy.existing":   {"target: {context: a}", "target: {context: a}, copy: {existing: Keep}"},
		"spec.mirror.copy.volumes":    {"target: {context: a}, copy: {volumes: Skip}", "target: {context: a}"},
		"spec.mirror.copy.kinds":      {"target: {context: a}, copy: {kinds: {exclude: [secrets]}}", "target: {context: a}"},
		"spec.mirror.redirect.from":   {"target: {context: a}, redirect: {from: [192.0.2.1]}", "target: {context: a}"},
	} {
		for _, serving := range []v1alpha1.ServingSide{"", v1alpha1.ServingSource, v1alpha1.ServingBoth, v1alpha1.ServingTarget} {
			recorded, given := mirror(texts[0]), mirror(texts[1])
			recorded.Status.Mirror = &v1alpha1.MirrorStatus{Serving: serving}
			effective, changes, err := Merge(recorded, given)
			var wrong *Error
			refused := errors.As(err, &wrong) && wrong.Field == field
			may := field != "spec.mirror.target" && (serving == "" || serving == v1alpha1.ServingSource)
			switch {
			case may && (err != nil || len(changes) == 0 || !reflect.DeepEqual(effective.Spec, given.Spec)):
				t.Errorf("%s while %q serves: %v, changes %v", field, serving, err, changes)
			case !may && !refused:
				t.Errorf("%s while %q serves: got %v", field, serving, err)
			}
		}
	}
}

// TestEveryFieldIsFixedOrNot has a line for each field of each job and says whether a recorded
// Migration may have it changed. A field that is new fails until it is decided.
func TestEveryFieldIsFixedOrNot(t *testing.T) {
	var lines []string
	for _, job := range []string{"serviceCIDR", "podCIDR", "nodes", "mirror", "cni"} {
		field, _ := reflect.TypeFor[v1alpha1.MigrationSpec]().FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, job) })
		lines = append(lines, decided(field.Type.Elem(), "spec."+job)...)
	}
	got := strings.Join(lines, "\n") + "\n"
	if *update {
		if err := os.WriteFile("testdata/fixed.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/fixed.txt")
	if err != nil || got != string(want) {
		t.Errorf("fields have changed (%v); decide, and run the test with -update:\n%s", err, got)
	}
}

// decided says of each field of a struct whether a transition rule holds it.
func decided(of reflect.Type, path string) (lines []string) {
	for i := range of.NumField() {
		tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if tag == "" {
			continue
		}
		at, typ := path+"."+tag, of.Field(i).Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if how := held(path, tag); how != "" {
			lines = append(lines, at+": "+how)
			continue
		}
		if typ.Kind() == reflect.Struct && typ.PkgPath() == reflect.TypeFor[v1alpha1.Migration]().PkgPath() && typ.Name() != "Action" {
			lines = append(lines, decided(typ, at)...)
			continue
		}
		lines = append(lines, at+": may change")
	}
	return lines
}

func held(path, tag string) string {
	parent, _ := built().at(nil, path)
	child, _ := built().at(nil, path+"."+tag)
	for _, rule := range child.XValidations {
		if strings.Contains(rule.Rule, "oldSelf") && rule.FieldPath == "" {
			return "fixed"
		}
	}
	for _, rule := range parent.XValidations {
		switch {
		case !strings.Contains(rule.Rule, "oldSelf") || rule.FieldPath != "."+tag:
		case strings.HasPrefix(rule.Rule, "!has(oldSelf."):
			return "fixed once it is set"
		case strings.Contains(rule.Rule, ".map("):
			return "what it leads is fixed"
		case tag == "controlPlane":
			continue // that it is there
		default:
			return "fixed"
		}
	}
	for _, rule := range built().schema.XValidations {
		if rule.FieldPath == "."+path+"."+tag && strings.Contains(rule.Rule, "status.mirror.serving") {
			return "fixed while names lead to the mirror"
		}
	}
	return ""
}
