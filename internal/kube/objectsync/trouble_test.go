//go:build apiserver && long

package objectsync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copypreview"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
)

const secretValue = "do-not-show-this"

func (f *fixture) only(result objectsync.Result, reason objectsync.TroubleReason, words ...string) {
	f.Helper()
	if len(result.Errors) != 1 {
		f.Fatalf("errors: %v", result.Errors)
	}
	e := result.Errors[0]
	if e.Reason != reason || e.Hint == "" {
		f.Errorf("%v: reason %s, hint %q", e, e.Reason, e.Hint)
	}
	for _, w := range words {
		if !strings.Contains(e.Error()+e.Hint, w) {
			f.Errorf("%v (%s) does not say %q", e, e.Hint, w)
		}
	}
}

// What the target has of its own is never written to, unless that is asked for.
func TestExisting(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: source}")
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: equal, namespace: SHOP}\ndata: {a: both}")
	f.make(f.target, "apiVersion: v1\nkind: Namespace\nmetadata: {name: SHOP}")
	f.make(f.target, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: target, b: target}")
	f.make(f.target, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: equal, namespace: SHOP}\ndata: {a: both}")
	config := objecttest.KindOf("v1", "ConfigMap")
	before := f.get(f.target, config, f.shop, "c").GetResourceVersion()

	c := f.copier(nil)
	s, err := copypreview.Of(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Conflicts) != 1 || s.Conflicts[0].Ref.Name != "c" || !strings.Contains(s.Conflicts[0].What, ".data.a") {
		t.Errorf("conflicts: %v", s.Conflicts)
	}
	f.only(f.run(c), objectsync.ReasonExists, f.shop+"/c", ".data.a", "spec.mirror.copy.existing")

	keep := f.copier(func(o *copyrules.Options) { o.Copy.Existing = v1alpha1.ExistingKeep })
	if r := f.clean(keep); r.Kept != 3 { // the namespace too
		t.Errorf("with Keep: %+v", r)
	}
	if diffs := f.differences(keep); len(diffs) > 0 {
		t.Errorf("with Keep: %v", diffs)
	}
	if now := f.get(f.target, config, f.shop, "c").GetResourceVersion(); now != before {
		t.Error("the target's own was written to")
	}

	f.clean(f.copier(func(o *copyrules.Options) { o.Copy.Existing = v1alpha1.ExistingOverwrite }))
	after := f.get(f.target, config, f.shop, "c")
	if a, _, _ := unstructured.NestedString(after.Object, "data", "a"); a != "source" || after.GetLabels()[v1alpha1.LabelMirror] != "m" {
		t.Errorf("with Overwrite: %v", after.Object)
	}
	// Copies of one migration are not another's.
	other := f.copier(func(o *copyrules.Options) { o.Migration = "other" })
	f.change(f.source, config, f.shop, "c", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "new", "data", "a")
	})
	if r := f.run(other); len(r.Errors) == 0 || r.Written != 0 || r.Deleted != 0 {
		t.Errorf("another migration: %+v", r)
	}
}

// Who makes an object between the look and the write keeps it.
func TestMadeMeanwhile(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: both}")
	f.make(f.target, "apiVersion: v1\nkind: Namespace\nmetadata: {name: SHOP}")
	f.make(f.target, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}\ndata: {a: both}")
	c := f.copier(nil)
	config := objecttest.KindOf("v1", "ConfigMap")
	got := c.Once(context.Background(), config, f.get(f.source, config, f.shop, "c"))
	if got == nil || got.Reason != objectsync.ReasonExists {
		t.Errorf("got %+v", got)
	}
	have := f.get(f.target, config, f.shop, "c")
	if len(have.GetLabels()) > 0 || len(have.GetAnnotations()) > 0 {
		t.Errorf("left behind: %v", have.Object)
	}
}

func TestConflict(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: SHOP, annotations: {a: source}}")
	f.make(f.target, "apiVersion: v1\nkind: Namespace\nmetadata: {name: SHOP, labels: {replumb.dev/mirror: m}}")
	f.make(f.target, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: SHOP, annotations: {a: target}}")
	f.only(f.run(f.copier(nil)), objectsync.ReasonConflict, f.shop+"/default", ".metadata.annotations.a")
}

func TestQuota(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: SHOP}")
	f.make(f.target, "apiVersion: v1\nkind: Namespace\nmetadata: {name: SHOP, labels: {replumb.dev/mirror: m}}")
	f.make(f.target, `apiVersion: v1
kind: ResourceQuota
metadata: {name: small, namespace: SHOP}
spec: {hard: {configmaps: "0"}}`)
	k := objecttest.KindOf("v1", "ResourceQuota")
	q := f.get(f.target, k, f.shop, "small")
	q.Object["status"] = map[string]any{"hard": map[string]any{"configmaps": "0"}, "used": map[string]any{"configmaps": "0"}}
	_, err := f.target.Objects().Resource(k.GVR()).Namespace(f.shop).UpdateStatus(context.Background(), q, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.only(f.run(f.copier(nil)), objectsync.ReasonQuota, "small", "raise the quota")
}

func TestWebhook(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: SHOP}\nstringData: {password: "+secretValue+"}")
	f.make(f.target, `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: SHOP}
webhooks:
- name: silent.example.com
  clientConfig: {url: "https://127.0.0.1:1/"}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: SHOP}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1`)
	t.Cleanup(func() {
		f.remove(f.target, objecttest.KindOf("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"), "", f.shop)
	})
	r := f.run(f.copier(nil))
	f.only(r, objectsync.ReasonWebhook, "silent.example.com")
	if e := r.Errors[0]; e.Err != nil || strings.Contains(fmt.Sprintf("%+v", e), secretValue) {
		t.Errorf("%+v", e)
	}
}

// A Secret that the API server refuses is named, its contents are not.
func TestSecretsStaySecret(t *testing.T) {
	f := setup(t)
	f.make(f.source, "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: SHOP}\nstringData: {password: "+secretValue+"}")
	for _, patch := range []string{
		`[{"op": "copy", "from": "/data/password", "path": "/metadata/annotations/x~1y~1z"}]`,
		`[{"op": "copy", "from": "/data/password", "path": "/type"}, {"op": "move", "from": "/data/password", "path": "/data/a b"}]`,
		`[{"op": "copy", "from": "/data", "path": "/metadata/labels"}, {"op": "copy", "from": "/data", "path": "/immutable"}]`,
	} {
		c := f.copier(func(o *copyrules.Options) {
			o.Copy.Transforms = []v1alpha1.Transform{{Kinds: []string{"secrets"}, JSONPatch: patch}}
		})
		r := f.run(c)
		if len(r.Errors) != 1 {
			t.Fatalf("errors: %v", r.Errors)
		}
		for _, text := range []string{r.Errors[0].Error(), fmt.Sprintf("%+v", r.Errors[0]), fmt.Sprint(errors.Unwrap(r.Errors[0]))} {
			if strings.Contains(text, secretValue) || strings.Contains(text, "ZG8tbm90LXNob3ctdGhpcw") {
				t.Errorf("%s", text)
			}
		}
		t.Log(r.Errors[0])
	}
	f.clean(f.copier(nil))
	f.change(f.target, objecttest.KindOf("v1", "Secret"), f.shop, "s", func(o *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(o.Object, "b3RoZXI=", "data", "password")
		_ = unstructured.SetNestedField(o.Object, "b3RoZXI=", "data", "more")
	})
	diffs := strings.Join(f.differences(f.copier(nil)), "\n")
	if strings.Count(diffs, "\n") != 1 || strings.Contains(diffs, "ZG8tbm90") || strings.Contains(diffs, "b3RoZXI") {
		t.Error(diffs)
	}
}

// Definitions are copied first, and kinds whose definition is new are waited for.
func TestDefinitions(t *testing.T) {
	f := setup(t)
	crd := objecttest.KindOf("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	f.make(f.source, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]`)
	thing := objecttest.KindOf("example.com/v1", "Thing")
	for _, s := range []*objectsync.Side{f.source, f.target} {
		t.Cleanup(func() { f.remove(s, crd, "", "things.example.com") })
	}
	f.eventually("the definition is served", func() bool {
		_, err := f.source.Count(context.Background(), thing)
		return err == nil
	})
	f.make(
		f.source,
		"apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t, namespace: SHOP, finalizers: [example.com/x]}\nspec: {a: 1}",
	)
	t.Cleanup(func() {
		f.change(f.source, thing, f.shop, "t", func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
		f.remove(f.source, thing, f.shop, "t")
	})
	c := f.copier(nil)
	c.Patience = 0
	f.clean(c)
	if have := f.get(f.target, thing, f.shop, "t"); len(have.GetFinalizers()) > 0 {
		t.Errorf("%v", have.Object)
	}
	if diffs := f.differences(c); len(diffs) > 0 {
		t.Errorf("differences: %v", diffs)
	}
	// Without its definition a kind is missing, and named.
	f.remove(f.target, crd, "", "things.example.com")
	without := f.copier(func(o *copyrules.Options) { o.Copy.Kinds.Exclude = []string{"customresourcedefinitions.*"} })
	f.eventually("the target serves the kind no more", func() bool {
		_, err := f.target.Count(context.Background(), thing)
		return err != nil
	})
	s, err := copypreview.Of(context.Background(), without)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Missing) != 1 || s.Missing[0].Resource != "things.example.com" || s.Missing[0].Copied != 1 {
		t.Errorf("missing: %+v", s.Missing)
	}
	if diffs := f.differences(
		without,
	); !slices.ContainsFunc(
		diffs,
		func(d string) bool { return strings.HasPrefix(d, "things.example.com") },
	) {
		t.Errorf("differences: %v", diffs)
	}
}

func TestWriteDir(t *testing.T) {
	f := setup(t)
	f.make(f.source, shopManifests)
	dir := filepath.Join(t.TempDir(), "out")
	w, err := f.copier(rich).WriteDir(context.Background(), dir, false)
	if err != nil || len(w.Errors) > 0 || w.Secrets != 1 {
		t.Fatalf("%+v, %v", w, err)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			files++
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		body, _ := os.ReadFile(path)
		if strings.Contains(string(body), "ZG8tbm90") || strings.Contains(string(body), secretValue) {
			t.Errorf("%s has a Secret's value", path)
		}
		return nil
	})
	if err != nil || files != w.Files+1 {
		t.Errorf("%d files, %v", files, err)
	}
	var full *objectsync.DirError
	if _, err := f.copier(rich).WriteDir(context.Background(), dir, false); !errors.As(err, &full) {
		t.Errorf("a directory that is not empty: %v", err)
	}
	all := t.TempDir()
	if w, err = f.copier(rich).WriteDir(context.Background(), all, true); err != nil || w.Secrets != 0 {
		t.Fatalf("%+v, %v", w, err)
	}
	if _, err := os.Stat(filepath.Join(all, f.shop, "secrets-key.yaml")); err != nil {
		t.Error(err)
	}
	order, err := os.ReadFile(filepath.Join(all, "kustomization.yaml"))
	if err != nil || strings.Index(string(order), "namespaces-") > strings.Index(string(order), "deployments.apps-") {
		t.Errorf("%s, %v", order, err)
	}
}
