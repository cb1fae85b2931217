package gitops

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	application   = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {namespace: argocd, name: shop, uid: a}\nspec: "
	kustomization = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {namespace: flux-system, name: apps, uid: a}\nspec: "
	helmRelease   = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {namespace: shop, name: cart, uid: a}\nspec: "
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func text(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	body, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestSuspended: what is recorded, what becomes of an object, and that it comes back exactly.
func TestSuspended(t *testing.T) {
	for name, test := range map[string]struct {
		object, was, spec string // spec is that of the suspended object; empty if it stays as it is
	}{
		"automated":                    {application + "{syncPolicy: {automated: {prune: true}, syncOptions: [a]}}", `{"prune":true}`, `{"syncPolicy":{"syncOptions":["a"]}}`},
		"automated and nothing else":   {application + "{syncPolicy: {automated: {}}}", `{}`, `{"syncPolicy":{}}`},
		"enabled":                      {application + "{syncPolicy: {automated: {enabled: true}}}", `{"enabled":true}`, `{"syncPolicy":{}}`},
		"turned off by its owner":      {application + "{syncPolicy: {automated: {enabled: false}}}", "", ""},
		"by hand":                      {application + "{syncPolicy: {syncOptions: [a]}}", "", ""},
		"no sync policy":               {application + "{project: a}", "", ""},
		"Kustomization":                {kustomization + "{path: a}", "", `{"path":"a","suspend":true}`},
		"Kustomization that says so":   {kustomization + "{suspend: false}", "false", `{"suspend":true}`},
		"Kustomization of its owner's": {kustomization + "{suspend: true}", "", ""},
		"HelmRelease":                  {helmRelease + "{interval: 1m}", "", `{"interval":"1m","suspend":true}`},
		"another kind":                 {"apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: a, name: a}\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(t, test.object)
			before := text(t, o)
			record, err := SuspendRecord(nil).With([]*unstructured.Unstructured{o})
			suspended := Suspended(o, "move")
			if err != nil || (suspended != nil) != (test.spec != "") || len(record) != 0 != (test.spec != "") || text(t, o) != before {
				t.Fatalf("recorded %v, %v; suspended is %v", record, err, suspended)
			}
			if suspended == nil {
				return
			}
			spec, _ := json.Marshal(suspended.Object["spec"])
			if string(record[0].Was) != test.was || string(spec) != test.spec || reconciles(suspended) ||
				suspended.GetAnnotations()[v1alpha1.AnnotationSuspended] != "move" {
				t.Errorf("was %s, is %s", record[0].Was, text(t, suspended))
			}
			back, why, err := record[0].Resumed(suspended)
			if err != nil || why != "" || text(t, back) != before {
				t.Errorf("resumed: %v, %q, %v, want %s", back, why, err, before)
			}
			if again, why, err := record[0].Resumed(back); again != nil || why != "" || err != nil {
				t.Errorf("resumed twice: %v, %q, %v", again, why, err)
			}
		})
	}
}

// TestResumedAfterChanges: what its owner has changed meanwhile is left, and told.
func TestResumedAfterChanges(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*unstructured.Unstructured)
		says   string
		noted  bool // only the annotation goes
	}{
		"resumed by its owner": {func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, false, "spec", "suspend")
		}, "changed meanwhile", true},
		"made the owner's own":   {func(o *unstructured.Unstructured) { o.SetAnnotations(nil) }, "changed meanwhile", false},
		"created again":          {func(o *unstructured.Unstructured) { o.SetUID("b") }, "created again", false},
		"another field, and all": {func(o *unstructured.Unstructured) { _ = unstructured.SetNestedField(o.Object, "b", "spec", "path") }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			o := object(t, kustomization+"{path: a}")
			record, err := SuspendRecord(nil).With([]*unstructured.Unstructured{o})
			if err != nil {
				t.Fatal(err)
			}
			suspended := Suspended(o, "move")
			test.change(suspended)
			want, _, _ := unstructured.NestedFieldCopy(suspended.Object, "spec", "suspend")
			back, why, err := record[0].Resumed(suspended)
			if err != nil || !strings.Contains(why, test.says) || test.says == "" && why != "" {
				t.Fatalf("%q, %v", why, err)
			}
			switch {
			case test.says == "":
				path, _, _ := unstructured.NestedString(back.Object, "spec", "path")
				if _, has, _ := unstructured.NestedBool(back.Object, "spec", "suspend"); has || path != "b" {
					t.Errorf("resumed: %s", text(t, back))
				}
			case test.noted:
				have, _, _ := unstructured.NestedFieldCopy(back.Object, "spec", "suspend")
				if have != want || len(back.GetAnnotations()) > 0 {
					t.Errorf("%s", text(t, back))
				}
			case back != nil:
				t.Errorf("it was written: %s", text(t, back))
			}
		})
	}
}

// TestRecordOfACutOffRun: what was recorded and never suspended is recorded as it is now; what is
// suspended stays as it was recorded.
func TestRecordOfACutOffRun(t *testing.T) {
	o := object(t, kustomization+"{path: a}")
	record, _ := SuspendRecord(nil).With([]*unstructured.Unstructured{o})
	changed := object(t, kustomization+"{suspend: false}")
	if got, err := record.With([]*unstructured.Unstructured{changed}); err != nil || len(got) != 1 || string(got[0].Was) != "false" {
		t.Errorf("recorded again: %v, %v", got, err)
	}
	if got, err := record.With([]*unstructured.Unstructured{Suspended(o, "move")}); err != nil || len(got) != 1 || got[0].Was != nil {
		t.Errorf("a suspended one: %v, %v", got, err)
	}
}

func TestReverting(t *testing.T) {
	app := object(t, application+"{syncPolicy: {automated: {}}}")
	_ = unstructured.SetNestedSlice(
		app.Object,
		[]any{map[string]any{"kind": "ApplicationSet", "name": "all"}},
		"metadata",
		"ownerReferences",
	)
	const set = "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {namespace: argocd, name: all}\nspec: "
	for spec, want := range map[string]bool{
		"{}": true,
		"{syncPolicy: {applicationsSync: create-update}}":                                     true,
		"{syncPolicy: {applicationsSync: create-only}}":                                       false,
		"{ignoreApplicationDifferences: [{jsonPointers: [/spec/source]}]}":                    true,
		"{ignoreApplicationDifferences: [{jsonPointers: [/spec/syncPolicy]}]}":                false,
		"{ignoreApplicationDifferences: [{name: other, jsonPointers: [/spec/syncPolicy]}]}":   true,
		"{ignoreApplicationDifferences: [{jqPathExpressions: [.spec.syncPolicy.automated]}]}": false,
	} {
		got := Reverting([]*unstructured.Unstructured{app}, []*unstructured.Unstructured{object(t, set+spec)})
		if slices.Equal(got, []string{"argocd/all"}) != want {
			t.Errorf("%s: %v", spec, got)
		}
	}
}
