package lab

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/lab/component"
)

// TestAddonsAreBuilt holds what add-ons run against the components that there are.
func TestAddonsAreBuilt(t *testing.T) {
	topology := Default()
	for _, c := range component.All() {
		if madeOf(c.Name) != "" && topology.needs(c.Name) {
			t.Errorf("a lab without add-ons builds %s", c.Name)
		}
	}
	topology.With = AllAddons()
	for _, a := range AllAddons() {
		for _, p := range a.programs() {
			if _, err := component.Named(p.component); err != nil || madeOf(p.component) != a || !topology.needs(p.component) {
				t.Errorf("%s is made of %s, which is of %q: %v", a, p.component, madeOf(p.component), err)
			}
		}
	}
	if len(topology.ofAddons(map[string]string{"traefik": "/t", "kubernetes": "/k"})) != 1 {
		t.Error("what is no add-on's is taken for one")
	}
}

func TestAddonsThatCannotBe(t *testing.T) {
	unknown, unreachable := Default(), Default()
	unknown.With = []Addon{"istio"}
	unreachable.With, unreachable.CNI = []Addon{MetricsServer}, Calico
	for _, topology := range []Topology{unknown, unreachable} {
		invalid := (*InvalidError)(nil)
		if err := topology.Validate(); !errors.As(err, &invalid) || invalid.Field != "with" {
			t.Errorf("%v with %s: %v", topology.With, topology.CNI, err)
		}
	}
	topology := Default()
	topology.With = AllAddons()
	if err := topology.Validate(); err != nil {
		t.Error(err)
	}
}

// TestAddonManifests reads what add-ons are made of as strictly as an API server can: nothing is pulled, nothing mounted that is not there.
func TestAddonManifests(t *testing.T) {
	values := map[string]any{}
	for _, key := range []string{
		"Namespace", "Name", "Image", "Class", "Controller", "Speaker", "First", "Last", "Source", "SourceImage", "Kustomize", "KustomizeImage",
	} {
		values[key] = strings.ToLower(key)
	}
	values["NodePort"] = TraefikNodePort
	for _, text := range []string{traefikTemplate, metalLBTemplate, metricsServerTemplate, argoRolloutsTemplate, fluxTemplate} {
		parsed, err := template.New("").Option("missingkey=error").Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := parsed.Execute(&out, values); err != nil {
			t.Fatal(err)
		}
		kinds, daemons := kindsIn(t, out.Bytes())
		if !slices.Contains(kinds, "Deployment") {
			t.Errorf("nothing runs among %v", kinds)
		}
		for _, d := range daemons {
			requireRuns(t, d.Name, d.Spec.Template.Spec)
		}
		for doc := range bytes.SplitSeq(out.Bytes(), []byte("\n---\n")) {
			var d appsv1.Deployment
			if err := yaml.Unmarshal(doc, &d); err == nil && d.Kind == "Deployment" {
				if err := yaml.UnmarshalStrict(doc, &d); err != nil {
					t.Errorf("%v in\n%s", err, doc)
				}
				requireRuns(t, d.Name, d.Spec.Template.Spec)
			}
		}
	}
}

func requireRuns(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	for _, c := range pod.Containers {
		if c.ImagePullPolicy != corev1.PullNever || c.Resources.Requests.Cpu().MilliValue() > 20 {
			t.Errorf("%s of %s is pulled, or too large", c.Name, name)
		}
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s of %s mounts %s, which there is not", c.Name, name, m.Name)
			}
		}
	}
}

func TestDefinitionsIn(t *testing.T) {
	dir := t.TempDir()
	if none, err := definitionsIn(filepath.Join(dir, "none")); err != nil || len(none) > 0 {
		t.Errorf("of a folder that there is not: %v, %v", none, err)
	}
	for name, kind := range map[string]string{"a.yaml": "CustomResourceDefinition", "b.yml": "Service"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("apiVersion: v1\nkind: "+kind+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := definitionsIn(dir); err != nil || len(files) != 1 || filepath.Base(files[0]) != "a.yaml" {
		t.Errorf("there are %v, %v", files, err)
	}
}
