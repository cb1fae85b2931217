package servicecidr

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/ui"
)

var update = flag.Bool("update", false, "write golden files")

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the checks find and the
// plan that is made. No cluster is needed.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { golden(t, file) })
	}
}

func golden(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string][]byte{}
	for _, f := range archive.Files {
		in[f.Name] = f.Data
	}
	m, err := Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(Tools{}, m)
	if err != nil {
		t.Fatal(err)
	}
	snap := readSnapshot(t, in["cluster.yaml"], in["facts.yaml"])
	survey := Look(snap, job.Spec)
	findings := check.Run(Checks(), Input{Snapshot: snap, Survey: survey})
	p := &Planner{Survey: survey, Migration: job.Migration, Findings: findings, Form: v1alpha1.BridgeLoadBalancer}
	got := map[string]string{"findings": renderFindings(findings), "plan": renderPlan(t, p)}
	for i, f := range archive.Files {
		want, ok := got[f.Name]
		if !ok || string(f.Data) == want {
			continue
		}
		archive.Files[i].Data = []byte(want)
		if !*update {
			t.Errorf("%s differs; run with -update to accept\ngot:\n%s\nwant:\n%s", f.Name, want, f.Data)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// facts are what only a running cluster can tell.
type facts struct {
	Minor    string            `json:"minor"`
	Denied   []string          `json:"denied"`
	Domains  map[string]string `json:"domains"`
	Refused  map[string]string `json:"refused"`
	Admitted []string          `json:"admitted"`
}

func readSnapshot(t *testing.T, manifests, factsYAML []byte) *cluster.Snapshot {
	t.Helper()
	f := facts{Minor: "36"}
	if err := yaml.UnmarshalStrict(factsYAML, &f); err != nil {
		t.Fatal(err)
	}
	snap := &cluster.Snapshot{
		Version:        &version.Info{Major: "1", Minor: f.Minor, GitVersion: "v1." + f.Minor + ".0"},
		Kubelets: map[string]cluster.KubeletAnswer{}, Admitted: map[v1alpha1.BridgeForm]error{},
	}
	for _, r := range Rights() {
		snap.Access = append(snap.Access, cluster.AccessAnswer{Right: r, Allowed: !slices.Contains(f.Denied, r.String())})
	}
	for node, domain := range f.Domains {
		answer := cluster.KubeletAnswer{Domain: domain}
		if domain == "" {
			answer.Err = errors.New("no answer")
		}
		snap.Kubelets[node] = answer
	}
	for _, form := range f.Admitted {
		snap.Admitted[v1alpha1.BridgeForm(form)] = nil
	}
	for form, reason := range f.Refused {
		snap.Admitted[v1alpha1.BridgeForm(form)] = errors.New(reason)
	}
	readObjects(t, snap, manifests)
	return snap
}

func readObjects(t *testing.T, snap *cluster.Snapshot, manifests []byte) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decode := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for doc := range bytes.SplitSeq(manifests, []byte("---\n")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		o, _, err := decode.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		switch o := o.(type) {
		case *corev1.Service:
			if o.Spec.ClusterIP != "" && o.Spec.ClusterIPs == nil {
				o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
			}
			snap.Services = append(snap.Services, *o)
		case *corev1.Namespace:
			snap.Ending = map[string]bool{o.Name: !o.DeletionTimestamp.IsZero()}
		case *corev1.Node:
			snap.Nodes = append(snap.Nodes, *o)
		case *networkingv1.ServiceCIDR:
			snap.ServiceCIDRs = append(snap.ServiceCIDRs, *o)
		case *networkingv1.IPAddress:
			snap.IPAddresses = append(snap.IPAddresses, *o)
		default:
			t.Fatalf("unexpected %T", o)
		}
	}
}

// renderFindings leaves out what passed.
func renderFindings(all check.Findings) string {
	var b strings.Builder
	for _, f := range all {
		if f.Outcome != check.Pass {
			fmt.Fprintf(&b, "%s %s %s: %s\n", f.Code, f.Severity, f.Outcome, f.Message)
		}
	}
	return b.String()
}

func renderPlan(t *testing.T, p *Planner) string {
	t.Helper()
	phases, err := ui.PlanPhases(p.Apply())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	ui.Phases(&b, phases)
	for _, e := range p.Survey.Stays {
		fmt.Fprintf(&b, "stays: %s %s\n", e.Key(), e.Reason)
	}
	for _, e := range p.Survey.Moves {
		fmt.Fprintf(&b, "%s: %s -> %s %s\n", e.Key(), e.Old, e.New, e.Place)
	}
	return b.String()
}

// TestEveryCheckHasAFixtureThatFires also makes sure that codes are unique and every text is there.
func TestEveryCheckHasAFixtureThatFires(t *testing.T) {
	var all []byte
	files, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, body...)
	}
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Code] || c.Claim == "" || c.Fix == "" || c.Run == nil {
			t.Errorf("check %s is used twice or lacks something", c.Code)
		}
		seen[c.Code] = true
		if !bytes.Contains(all, []byte("\n"+c.Code+" ")) {
			t.Errorf("check %s fires in no fixture", c.Code)
		}
	}
}

func TestFindingsPageIsUpToDate(t *testing.T) {
	const page = "../../docs/findings.md"
	want := check.Reference("Findings", Checks())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil || string(have) != want {
		t.Errorf("%s is not up to date (%v); run the tests of this package with -update", page, err)
	}
}

// TestRBACGrantsExactlyTheRights compares deploy/rbac.yaml with what the checks ask for.
func TestRBACGrantsExactlyTheRights(t *testing.T) {
	body, err := os.ReadFile("../../deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(body, role); err != nil {
		t.Fatal(err)
	}
	var granted, needed []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			for _, verb := range rule.Verbs {
				granted = append(granted, cluster.Right{Verb: verb, Group: rule.APIGroups[0], Resource: name, Subresource: sub}.String())
			}
		}
	}
	for _, r := range Rights() {
		needed = append(needed, r.String())
	}
	slices.Sort(granted)
	slices.Sort(needed)
	if !slices.Equal(granted, needed) {
		t.Errorf("granted %v\nneeded %v", granted, needed)
	}
}

func TestExampleIsValid(t *testing.T) {
	files, err := filepath.Glob("../../examples/service-cidr/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Parse(body)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := NewJob(Tools{}, m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {serviceCIDR: {to: [172.24.0.0/16]}}\n"))
	f.Add(
		[]byte(
			"apiVersion: replumb.dev/v1alpha1\nkind: Migration\nspec: {serviceCIDR: {to: [\"::/0\"], drain: -1s}, batch: {size: 501}}\n",
		),
	)
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := Parse(body)
		if err != nil {
			return
		}
		job, err := NewJob(Tools{}, m)
		var wrong *SpecError
		if err != nil && (!errors.As(err, &wrong) || wrong.Field == "" || wrong.Hint == "") {
			t.Fatalf("error without field or hint: %v", err)
		}
		if err == nil && len(job.Spec.To) == 0 {
			t.Fatal("accepted a Migration without a target")
		}
	})
}

func TestChooseForm(t *testing.T) {
	no := errors.New("denied")
	for _, tt := range []struct {
		wish     v1alpha1.BridgeForm
		needed   int
		admitted map[v1alpha1.BridgeForm]error
		want     v1alpha1.BridgeForm
	}{
		{v1alpha1.BridgeAuto, 10, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: nil, v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeLoadBalancer},
		{v1alpha1.BridgeAuto, 10, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: no, v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeExternalIPs},
		{v1alpha1.BridgeAuto, bridge.LoadBalancerLimit + 1, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeExternalIPs},
		{v1alpha1.BridgeLoadBalancer, 10, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: no}, ""},
		{v1alpha1.BridgeAuto, 10, nil, ""},
	} {
		if got, _ := bridge.Choose(tt.wish, tt.needed, tt.admitted); got != tt.want {
			t.Errorf("Choose(%s, %d, %v) = %q, want %q", tt.wish, tt.needed, tt.admitted, got, tt.want)
		}
	}
}
