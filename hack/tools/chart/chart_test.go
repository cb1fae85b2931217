package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write golden files")

const (
	chartDir = "../../../charts/replumb"
	deploy   = "../../../deploy/"
	tag      = "v1.2.3"
)

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render is what Helm makes of the chart, with values as YAML, by the names of the templates.
func render(t *testing.T, namespace, values string) (map[string]string, error) {
	t.Helper()
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "replumb", Namespace: namespace, Revision: 1, IsInstall: true}
	c := load(t)
	all, err := chartutil.ToRenderValues(c, given, release, chartutil.DefaultCapabilities.Copy())
	if err != nil {
		return nil, err // of the schema
	}
	return engine.Engine{Strict: true}.Render(c, all)
}

// name of an object, with its kind.
func name(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// objects are the documents of some files, by their names.
func objects(t *testing.T, texts ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	for _, text := range texts {
		for doc := range strings.SplitSeq("\n"+text, "\n---") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
				t.Fatalf("%v in\n%s", err, doc)
			}
			if len(o.Object) == 0 {
				continue
			}
			if all[name(o)] != nil {
				t.Errorf("%s is there twice", name(o))
			}
			all[name(o)] = o
		}
	}
	return all
}

// rendered are the objects of the chart, without the pods of helm test.
func rendered(t *testing.T, values string) map[string]*unstructured.Unstructured {
	t.Helper()
	files, err := render(t, "replumb-system", values)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for file, text := range files {
		if strings.HasSuffix(file, ".yaml") && !strings.Contains(file, "/tests/") {
			texts = append(texts, text)
		}
	}
	return objects(t, texts...)
}

// plain is an object without what Helm adds to it.
func plain(o *unstructured.Unstructured) map[string]any {
	o = o.DeepCopy()
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	delete(labels, "helm.sh/chart")
	delete(labels, "app.kubernetes.io/managed-by")
	delete(annotations, "helm.sh/resource-policy")
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	if len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
	return o.Object
}

// TestChartIsWhatInstallPrints: the same objects as of the kustomize base, which another test holds to replumb install. The namespace of
// the release is Helm's to make.
func TestChartIsWhatInstallPrints(t *testing.T) {
	var texts []string
	crds := []string{"crds/replumb.dev_migrations.yaml", "crds/replumb.dev_nodereports.yaml"}
	for _, file := range append(crds, "kustomize/operator.yaml") {
		body, err := os.ReadFile(deploy + file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(body))
	}
	want := objects(t, texts...)
	delete(want, "Namespace /replumb-system")
	got := rendered(t, "image: {tag: "+tag+"}")
	for n, o := range want {
		if got[n] == nil {
			t.Errorf("the chart has no %s", n)
			continue
		}
		if n == "Deployment replumb-system/replumb-operator" {
			o.SetLabels(with(o.GetLabels(), "app.kubernetes.io/version", tag))
			setImage(t, o, "ghcr.io/replumb/replumb:"+tag)
		}
		if have := plain(got[n]); !equality.Semantic.DeepEqual(have, plain(o)) {
			t.Errorf("%s differs; of the chart:\n%s\nof install:\n%s", n, text(t, have), text(t, plain(o)))
		}
		delete(got, n)
	}
	for n := range got {
		t.Errorf("install prints no %s", n)
	}
}

func with(labels map[string]string, key, value string) map[string]string {
	labels[key] = value
	return labels
}

func setImage(t *testing.T, o *unstructured.Unstructured, image string) {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("%d containers, %v", len(containers), err)
	}
	containers[0].(map[string]any)["image"] = image
	if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	body, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(body[:min(len(body), 4000)])
}

// TestGolden renders the chart with every value set. Definitions and rights are left out: they are files of the chart.
func TestGolden(t *testing.T) {
	for _, file := range glob(t, "testdata/*.values.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			values, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			files, err := render(t, "replumb-system", string(values))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, template := range sorted(files) {
				base := filepath.Base(template)
				if base == "crds.yaml" || base == "rbac.yaml" || strings.TrimSpace(files[template]) == "" {
					continue
				}
				body := files[template]
				if base == "metrics.yaml" { // the dashboard is a file of the chart as well
					body, _, _ = strings.Cut(body, "data:\n  replumb.json")
				}
				out.WriteString("# " + base + "\n" + body + "\n")
			}
			golden := strings.TrimSuffix(file, ".values.yaml") + ".golden.txt"
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || !bytes.Equal(want, out.Bytes()) {
				t.Errorf("%s is not what is rendered (%v); run with -update to accept:\n%s", golden, err, out.Bytes())
			}
		})
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	if err != nil || len(all) == 0 {
		t.Fatalf("nothing is like %s: %v", pattern, err)
	}
	return all
}

func sorted(files map[string]string) []string {
	var all []string
	for n := range files {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// TestKubeVersions: Helm installs on every Kubernetes that docs/support.md names.
func TestKubeVersions(t *testing.T) {
	page, err := os.ReadFile("../../../docs/support.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^\| Kubernetes \| (.+) \|$`).FindStringSubmatch(string(page))
	if row == nil {
		t.Fatal("docs/support.md has no row Kubernetes")
	}
	minors := regexp.MustCompile(`\b1\.\d{2}\b`).FindAllString(row[1], -1)
	slices.Sort(minors)
	c := load(t)
	if want, has := ">="+minors[0]+".0-0", c.Metadata.KubeVersion; has != want {
		t.Errorf("kubeVersion is %s; by docs/support.md it is %s", has, want)
	}
	for _, f := range c.Raw {
		if f.Name == "README.md" && !strings.Contains(string(f.Data), "Kubernetes "+minors[0]+" or later") {
			t.Errorf("README.md does not say Kubernetes %s or later", minors[0])
		}
	}
}

// TestNotesSayHowToMove: who follows them gets more than a plan.
func TestNotesSayHowToMove(t *testing.T) {
	files, err := render(t, "replumb-system", "image: {tag: v1.2.3}")
	if err != nil {
		t.Fatal(err)
	}
	if notes := files["replumb/templates/NOTES.txt"]; !strings.Contains(notes, "spec.desired: Applied") {
		t.Errorf("the notes have no spec.desired: Applied:\n%s", notes)
	}
}

// TestRefusals: what the chart does not take, and what it says.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ namespace, values, says string }{
		{"shop", "image: {tag: v1.2.3}", "replumb cannot be installed in namespace shop"},
		{"replumb-system", "", "set image.tag or image.digest"},
		{"replumb-system", "image: {tag: v1.2.3, digest: sha256:1}", "image"},
		{"replumb-system", "image: {tag: v1.2.3}\nreplicaCount: 0", "replicaCount"},
		{"replumb-system", "image: {tag: v1.2.3}\nreplicas: 2", "replicas"},
		{"replumb-system", "image: {tag: v1.2.3}\nmetrics: {port: 80}", "port"},
		{"replumb-system", "image: {tag: v1.2.3}\nfullnameOverride: mover", "fullnameOverride"},
		{"replumb-system", "image: {tag: v1.2.3}\ncommonLabels: {app.kubernetes.io/name: mover}", "commonLabels"},
		{"replumb-system", "image: {tag: v1.2.3}\nrbac: {kinds: []}", "kinds"},
		{"replumb-system", "image: {tag: v1.2.3}\nrbac: {kinds: [services]}", "kinds"},
	} {
		if _, err := render(t, tt.namespace, tt.values); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s, %q: %v", tt.namespace, tt.values, err)
		}
	}
}

// TestKindsAreLeftOut: the operator has the rights of the kinds that are named, and is told which they are.
func TestKindsAreLeftOut(t *testing.T) {
	const operator = "Deployment replumb-system/replumb-operator"
	whole := rendered(t, "image: {tag: v1.2.3}")
	got := rendered(t, "image: {tag: v1.2.3}\nrbac: {kinds: [podCIDR, nodes]}")
	for name, want := range map[string]bool{
		"ClusterRole /replumb-operator": false, "ClusterRole /replumb-operator-servicecidr": false,
		"ClusterRole /replumb-operator-podcidr": true, "ClusterRoleBinding /replumb-operator-nodes": true,
		"Role replumb-system/replumb-operator-lease": true,
	} {
		if (got[name] != nil) != want {
			t.Errorf("%s is there: %t", name, got[name] != nil)
		}
	}
	if told := text(t, got[operator].Object); !strings.Contains(told, "--kinds=podCIDR,nodes") {
		t.Errorf("the operator is not told:\n%s", told)
	}
	if told := text(t, whole[operator].Object); strings.Contains(told, "--kinds") {
		t.Errorf("an operator for all kinds is told:\n%s", told)
	}
	if has := text(t, got["ClusterRole /replumb-operator-podcidr"].Object); strings.Contains(has, "services/status") {
		t.Errorf("it has rights of Services:\n%s", has)
	}
}

// TestNothingListensUnlessAsked: without metrics and probes there is neither a port nor a Service.
func TestNothingListensUnlessAsked(t *testing.T) {
	for n, o := range rendered(t, "image: {tag: v1.2.3}\nprobes: {enabled: false}") {
		if strings.HasPrefix(n, "Service ") || strings.Contains(text(t, o.Object), "containerPort") {
			t.Errorf("%s listens", n)
		}
	}
	got := rendered(t, "image: {tag: v1.2.3}\n"+
		"metrics: {enabled: true, serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}")
	for _, n := range []string{
		"Service replumb-system/replumb-operator", "ServiceMonitor replumb-system/replumb-operator", "PrometheusRule replumb-system/replumb",
		"ConfigMap replumb-system/replumb-dashboard",
	} {
		if got[n] == nil {
			t.Errorf("there is no %s in %v", n, got)
		}
	}
}

// TestAccountOfAnotherName: it has the rights, pods run as it, and it is made only if that is asked for.
func TestAccountOfAnotherName(t *testing.T) {
	const account = "ServiceAccount replumb-system/"
	made := rendered(t, "image: {tag: v1.2.3}\nserviceAccount: {name: mover}")
	if made[account+"mover"] == nil || made[account+"replumb-operator"] != nil {
		t.Error("the account mover is not the one that is made")
	}
	got := rendered(t, "image: {tag: v1.2.3}\nserviceAccount: {name: mover, create: false}")
	if got[account+"mover"] != nil {
		t.Error("an account is made that is there already")
	}
	for n, o := range got {
		body := text(t, o.Object["subjects"])
		if strings.Contains(n, "Binding ") && strings.Contains(body, "ServiceAccount") && !strings.Contains(body, "name: mover\n") {
			t.Errorf("%s binds another account:\n%s", n, body)
		}
	}
	pods := got["Deployment replumb-system/replumb-operator"]
	if as, _, _ := unstructured.NestedString(pods.Object, "spec", "template", "spec", "serviceAccountName"); as != "mover" {
		t.Errorf("pods run as %s", as)
	}
}

// TestUsersOfThePlatform: a cluster that gives users to pods takes the chart without any of its own.
func TestUsersOfThePlatform(t *testing.T) {
	got := rendered(t, "image: {tag: v1.2.3}\nsecurityContext: {runAsUser: null, runAsGroup: null}")
	pods := text(t, got["Deployment replumb-system/replumb-operator"].Object)
	if strings.Contains(pods, "runAsUser:") || strings.Contains(pods, "runAsGroup:") || !strings.Contains(pods, "runAsNonRoot: true") {
		t.Errorf("it has users of its own:\n%s", pods)
	}
}

// TestReadmeHasEveryValue: its table has all values that the schema takes, and no other.
func TestReadmeHasEveryValue(t *testing.T) {
	page, err := os.ReadFile(chartDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, row[1])
	}
	var schema property
	if err := json.Unmarshal(load(t).Schema, &schema); err != nil {
		t.Fatal(err)
	}
	values := schema.leaves("")
	slices.Sort(rows)
	slices.Sort(values)
	if !slices.Equal(rows, values) {
		t.Errorf("README.md has\n%q\nthe values are\n%q", rows, values)
	}
}

// property is one of a JSON schema.
type property struct {
	Properties map[string]property `json:"properties"`
}

// leaves are the paths of those without properties of their own.
func (p property) leaves(path string) []string {
	if len(p.Properties) == 0 {
		return []string{path}
	}
	var all []string
	for name, under := range p.Properties {
		if name != "global" { // Helm's own
			all = append(all, under.leaves(strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return all
}

// TestKeptDefinitions: a release that ends takes no Migrations along, unless that is asked for.
func TestKeptDefinitions(t *testing.T) {
	const crd = "CustomResourceDefinition /migrations.replumb.dev"
	for values, want := range map[string]string{"crds: {keep: true}": "keep", "crds: {keep: false}": ""} {
		got := rendered(t, "image: {tag: v1.2.3}\n"+values)[crd]
		if got == nil {
			t.Fatalf("%s: no definition", values)
		}
		if a := got.GetAnnotations(); a["helm.sh/resource-policy"] != want || a["replumb.dev/schema-revision"] == "" {
			t.Errorf("%s: %v", values, a)
		}
	}
	if got := rendered(t, "image: {tag: v1.2.3}\ncrds: {install: false}")[crd]; got != nil {
		t.Error("crds.install: false has definitions")
	}
}
