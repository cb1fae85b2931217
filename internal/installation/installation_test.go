package installation

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	embedded "github.com/replumb/replumb/deploy/crds"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migrations"
)

var update = flag.Bool("update", false, "write the files that have the manifests")

// whole is an installation without any choice, as the chart and the kustomize base have it.
func whole() Options {
	return Options{Scope: Everything, Image: pull.Image{Name: "ghcr.io/replumb/replumb"}, Replicas: Replicas}
}

func objects(t *testing.T, o Options) []*unstructured.Unstructured {
	t.Helper()
	all, err := Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// named is one of the objects.
func named(t *testing.T, all []*unstructured.Unstructured, name string) *unstructured.Unstructured {
	t.Helper()
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return workload.NameOf(o) == name })
	if i < 0 {
		t.Fatalf("there is no %s", name)
	}
	return all[i]
}

// current holds a file against what it should be.
func current(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != string(want) {
		t.Errorf("%s is not up to date (%v): run the tests of this package with -update", filepath.Clean(file), err)
	}
}

// TestKustomizeBase: what kustomize builds of the base is what install prints.
func TestKustomizeBase(t *testing.T) {
	want := objects(t, whole())
	var own []*unstructured.Unstructured
	for _, o := range want {
		if o.GetKind() != "CustomResourceDefinition" {
			own = append(own, o)
		}
	}
	text, err := YAML(own)
	if err != nil {
		t.Fatal(err)
	}
	const from = "# Generated from internal/installation: see TestKustomizeBase.\n"
	current(t, "../../deploy/kustomize/operator.yaml", append([]byte(from), text...))

	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/kustomize")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(built.Resources()); n != len(want) {
		t.Errorf("kustomize builds %d objects, install prints %d", n, len(want))
	}
	for _, r := range built.Resources() {
		body, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		got := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(body, &got.Object); err != nil {
			t.Fatal(err)
		}
		if name := workload.NameOf(got); !same(t, got.Object, named(t, want, name).Object) {
			t.Errorf("%s differs:\n%s", name, body)
		}
	}
}

// same compares objects by what is in their YAML.
func same(t *testing.T, a, b any) bool {
	t.Helper()
	read := func(v any) (out any) {
		body, err := yaml.Marshal(v)
		if err == nil {
			err = yaml.Unmarshal(body, &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	return equality.Semantic.DeepEqual(read(a), read(b))
}

// TestChartFiles: what templates of the chart take from files is what install prints. That they
// render to the same objects is tested in hack/tools/chart.
func TestChartFiles(t *testing.T) {
	const dir = "../../charts/replumb/files/"
	current(t, dir+"crds/replumb.dev_migrations.yaml", embedded.Migrations)
	current(t, dir+"crds/replumb.dev_nodereports.yaml", embedded.NodeReports)
	all := objects(t, whole())
	for file, part := range map[string]any{
		"roles.yaml":   rolesOf(t, all),
		"kinds.yaml":   rolesByKind(t, all),
		"policy.yaml":  named(t, all, "ValidatingAdmissionPolicy "+Guard).Object["spec"],
		"binding.yaml": named(t, all, "ValidatingAdmissionPolicyBinding "+Guard).Object["spec"],
	} {
		body, err := yaml.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		current(t, dir+file, append([]byte("# Generated from internal/installation: see TestChartFiles.\n"), body...))
	}
}

// rolesOf are the roles that come with the operator, and whom they are bound to, as templates of
// the chart read them.
func rolesOf(t *testing.T, all []*unstructured.Unstructured) []map[string]any {
	t.Helper()
	var roles []map[string]any
	for _, o := range all {
		if o.GetKind() != "ClusterRole" && o.GetKind() != "Role" {
			continue
		}
		bound := o.DeepCopy()
		bound.SetKind(o.GetKind() + "Binding")
		roles = append(roles, map[string]any{
			"name": o.GetName(), "namespace": o.GetNamespace(), "rules": o.Object["rules"],
			"subjects": named(t, all, workload.NameOf(bound)).Object["subjects"],
		})
	}
	return roles
}

// rolesByKind are the roles of an operator for one kind alone, by the field of the kind.
func rolesByKind(t *testing.T, all []*unstructured.Unstructured) map[string][]map[string]any {
	t.Helper()
	roles, who := map[string][]map[string]any{}, named(t, all, "ClusterRoleBinding "+Operator).Object["subjects"]
	for _, kind := range migrations.All() {
		role := migrations.OperatorRole(kind.Field)
		role.Name += "-" + strings.ToLower(kind.Field)
		made, err := decode(rbac.Manifest(role))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range made {
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			if err != nil {
				t.Fatal(err)
			}
			roles[kind.Field] = append(roles[kind.Field], map[string]any{
				"name": o.GetName(), "namespace": o.GetNamespace(), "rules": u["rules"], "subjects": who,
			})
		}
	}
	return roles
}

// TestOperatorIsSafe: it listens for probes of kubelets alone, may do nothing on its node, and its
// Deployment survives a drain.
func TestOperatorIsSafe(t *testing.T) {
	d := &appsv1.Deployment{}
	o := whole()
	o.Image.Secrets, o.Version = []string{"registry"}, "v1.2.3"
	u := named(t, objects(t, o), "Deployment replumb-system/"+Operator)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if len(c.Ports) != 1 || c.Ports[0].Name != "health" || pod.HostNetwork {
		t.Errorf("it listens: %+v", c)
	}
	if c.LivenessProbe == nil || c.ReadinessProbe == nil {
		t.Errorf("no probe: %+v", c)
	}
	if !slices.Equal(c.Args, []string{"operator", "--health-probe-bind-address=8081"}) {
		t.Errorf("args %q", c.Args)
	}
	if s := c.SecurityContext; s == nil || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v", s)
	}
	if len(pod.ImagePullSecrets) != 1 || pod.ImagePullSecrets[0].Name != "registry" {
		t.Errorf("pull secrets %v", pod.ImagePullSecrets)
	}
	if d.Labels[LabelVersion] != "v1.2.3" || d.Spec.Template.Labels[LabelVersion] != "" {
		t.Errorf("labels %v, of pods %v", d.Labels, d.Spec.Template.Labels)
	}
	for key, value := range d.Labels {
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			t.Errorf("label %s: %s", key, wrong)
		}
	}
}

// TestScopes: what is in each of them, and what options are refused.
func TestScopes(t *testing.T) {
	definitionsOnly := []string{
		"CustomResourceDefinition migrations.replumb.dev", "CustomResourceDefinition nodereports.replumb.dev",
		"ValidatingAdmissionPolicy replumb-schema-revision", "ValidatingAdmissionPolicyBinding replumb-schema-revision",
	}
	namespaces := []string{"Namespace replumb-system", "Namespace replumb-journal"}
	for scope, want := range map[Scope][]string{
		Definitions:     definitionsOnly,
		WithoutOperator: slices.Concat(definitionsOnly, namespaces),
	} {
		o := whole()
		o.Scope = scope
		var got []string
		for _, u := range objects(t, o) {
			got = append(got, workload.NameOf(u))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", scope, got, want)
		}
	}
	all := objects(t, whole())
	for _, name := range []string{
		"ServiceAccount replumb-system/replumb-operator", "ClusterRole replumb-operator", "ClusterRoleBinding replumb-operator",
		"Role kube-system/replumb-operator", "RoleBinding kube-system/replumb-operator",
		"Deployment replumb-system/replumb-operator", "PodDisruptionBudget replumb-system/replumb-operator",
	} {
		named(t, all, name)
	}
	if _, err := Objects(Options{Scope: Everything, Replicas: 1}); !errors.Is(err, ErrNoImage) {
		t.Errorf("without an image: %v", err)
	}
	if _, err := Objects(Options{Scope: Everything, Image: whole().Image}); !errors.Is(err, ErrNoReplicas) {
		t.Errorf("without replicas: %v", err)
	}
}

// TestUserRoles: the roles for a purpose are those of all kinds, as replumb rbac prints them.
func TestUserRoles(t *testing.T) {
	o := whole()
	o.Scope, o.Purposes = WithoutOperator, []access.Purpose{access.View}
	var names []string
	for _, u := range objects(t, o) {
		if u.GetKind() == "ClusterRole" {
			names = append(names, u.GetName())
		}
	}
	for _, want := range []string{"replumb-services-view", "replumb-nodes-view"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s in %q", want, names)
		}
	}
	for _, name := range names {
		if !strings.HasSuffix(name, "-view") {
			t.Errorf("%s is not to view", name)
		}
	}
}

// TestSkew: a client and an operator may be one minor version apart.
func TestSkew(t *testing.T) {
	for _, tt := range []struct {
		client, operator string
		known, refused   bool
	}{
		{"v0.4.0", "v0.4.0", true, false},
		{"v0.4.0", "v0.4.7", true, false},
		{"v0.4.0", "v0.5.1", true, false},
		{"v0.5.1", "v0.4.0", true, false},
		{"v0.6.0", "v0.4.9", true, true},
		{"v0.4.9", "v0.6.0", true, true},
		{"v1.0.0", "v0.9.0", true, true},
		{"v0.4.0-3-gabc1234", "v0.4.0", true, false},
		{"a870219", "v0.4.0", false, false},
		{"v0.4.0", "", false, false},
	} {
		known, err := Compare(tt.client, tt.operator)
		var skew *SkewError
		if known != tt.known || errors.As(err, &skew) != tt.refused {
			t.Errorf("%s and %s: known %t, %v", tt.client, tt.operator, known, err)
		}
	}
}

// TestFits: definitions must not be newer than the client, and the operator near it.
func TestFits(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	const name = "migrations.replumb.dev"
	newer := &Installed{Schema: Schema{name: own[name] + 1}}
	var refused *cluster.NewerError
	if err := newer.Fits("v0.4.0"); !errors.As(err, &refused) || refused.Have != own[name]+1 {
		t.Errorf("a newer definition: %v", err)
	}
	older := &Installed{Schema: Schema{name: own[name] - 1}, Operator: &OperatorState{Version: "v0.4.0"}}
	if err := older.Fits("v0.4.0"); err != nil {
		t.Errorf("an older definition: %v", err)
	}
	var skew *SkewError
	if err := older.Fits("v0.6.0"); !errors.As(err, &skew) || skew.Operator != "v0.4.0" {
		t.Errorf("an older operator: %v", err)
	}
	if err := (&Installed{}).Fits("v0.6.0"); err != nil {
		t.Errorf("an empty cluster: %v", err)
	}
}
