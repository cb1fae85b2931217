package copyrules

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
	"github.com/replumb/replumb/internal/spec"
)

func TestWrongSpecs(t *testing.T) {
	for field, change := range map[string]func(*Options){
		"spec.mirror.copy.namespaces.include[0]": func(o *Options) { o.Copy.Namespaces.Include = []string{"a b"} },
		"spec.mirror.copy.kinds.exclude[1]":      func(o *Options) { o.Copy.Kinds.Exclude = []string{"a", ""} },
		"spec.mirror.copy.selector": func(o *Options) {
			o.Copy.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
		},
		"spec.mirror.copy.registries[0].from": func(o *Options) {
			o.Copy.Registries = []v1alpha1.RegistrySwap{{From: "https://a", To: "b"}}
		},
		"spec.mirror.copy.registries[0].credentials": func(o *Options) {
			o.Copy.Registries = []v1alpha1.RegistrySwap{{From: "a", To: "b", Credentials: &v1alpha1.SecretReference{}}}
		},
		"spec.mirror.copy.transforms[0].jsonPatch": func(o *Options) {
			o.Copy.Transforms = []v1alpha1.Transform{{JSONPatch: `[{"op": "drop", "path": "/a"}]`}}
		},
		"spec.mirror.copy.transforms[0].hosts[0]": func(o *Options) {
			o.Copy.Transforms = []v1alpha1.Transform{{Hosts: []v1alpha1.Swap{{From: "a"}}}}
		},
		"spec.mirror.copy.existing":           func(o *Options) { o.Copy.Existing = "Replace" },
		"spec.mirror.copy.parallel":           func(o *Options) { o.Copy.Parallel = 1000 },
		"spec.mirror.hosts[0]":                func(o *Options) { o.Hosts = []v1alpha1.HostAlias{{Name: "a", Alias: "a"}} },
		"spec.mirror.singletons.workloads[0]": func(o *Options) { o.Singletons.Workloads = []string{"daemonset/a/b"} },
		"spec.mirror.copy.transforms[0].names[0]": func(o *Options) {
			o.Copy.Transforms = []v1alpha1.Transform{{Names: []string{"a/b"}}}
		},
	} {
		o := Options{Migration: "m"}
		change(&o)
		var wrong *spec.Error
		if _, err := New(o); !errors.As(err, &wrong) || wrong.Field != field || wrong.Hint == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestOrder(t *testing.T) {
	kinds := []objects.ResourceKind{
		objecttest.KindOf("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"), objecttest.KindOf("networking.k8s.io/v1", "Ingress"),
		objecttest.KindOf("example.com/v1", "Thing"), objecttest.KindOf("v1", "ResourceQuota"), objecttest.KindOf("apps/v1", "Deployment"), objecttest.KindOf("v1", "Service"),
		objecttest.KindOf("v1", "PersistentVolumeClaim"), objecttest.KindOf("networking.k8s.io/v1", "NetworkPolicy"),
		objecttest.KindOf("rbac.authorization.k8s.io/v1", "Role"), objecttest.KindOf("v1", "ConfigMap"), objecttest.KindOf("v1", "Secret"),
		objecttest.KindOf("v1", "ServiceAccount"), objecttest.KindOf("storage.k8s.io/v1", "StorageClass"), objecttest.KindOf("v1", "Namespace"),
		objecttest.KindOf("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
	}
	Order(kinds)
	var names []string
	for _, k := range kinds {
		names = append(names, k.Kind)
	}
	want := "CustomResourceDefinition Namespace StorageClass ServiceAccount Secret ConfigMap Role NetworkPolicy PersistentVolumeClaim " +
		"Service Deployment Thing Ingress ResourceQuota ValidatingWebhookConfiguration"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestGlob(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"a*", "a", true},
		{"*", "", true},
		{"a*b", "ab", true},
		{"a*a", "a", false},
		{"*b*", "abc", true},
		{"a*b*c", "axxbyyc", true},
		{"a*b*c", "axxcyyb", false},
		{"a**b", "ab", true},
	} {
		if got := glob(tt.pattern, tt.name); got != tt.want {
			t.Errorf("glob(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("a*b", "axb")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if glob(pattern, name) && !strings.HasPrefix(name, strings.Split(pattern, "*")[0]) {
			t.Errorf("%q matches %q", pattern, name)
		}
		if !glob("*", name) || !glob(name+"*", name) || !glob("*"+name, name) {
			t.Errorf("%q does not match itself", name)
		}
	})
}

// FuzzPatch applies what can be read to an object. Nothing may panic, and what comes out must be an
// object that can be copied.
func FuzzPatch(f *testing.F) {
	f.Add(`[{"op": "add", "path": "/spec/a", "value": null}]`)
	f.Add("- {op: move, from: /spec, path: /metadata/labels}")
	f.Add(`[{"op": "copy", "from": "", "path": "/spec/-"}]`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := New(Options{Migration: "m", Copy: v1alpha1.CopySpec{Transforms: []v1alpha1.Transform{{JSONPatch: text}}}})
		if err != nil {
			return
		}
		o := objecttest.Parse(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {replicas: 1, list: [1]}}")
		k := objecttest.KindOf("apps/v1", "Deployment")
		taken, _, err := r.Take(k, o)
		if err == nil && (taken.GetName() != "web" || taken.GetLabels()[v1alpha1.LabelMirror] != "m") {
			t.Errorf("%q makes %v", text, taken.Object)
		}
	})
}
