package servicecidr

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the checks find and the
// plan that is made. No cluster is needed.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", sections)
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(Tools{}, m)
	if err != nil {
		t.Fatal(err)
	}
	input := readFixture(t, job.Spec, in["cluster.yaml"], in["facts.yaml"])
	input.Image = job.agents().Image().Name
	var f facts
	if err := yaml.Unmarshal(in["facts.yaml"], &f); err != nil {
		t.Fatal(err)
	}
	if f.Freeze != "" {
		input.Freeze = errors.New(f.Freeze)
	}
	if input.AbsentSecrets, err = job.agents().AbsentSecrets(t.Context(), migrationtest.Lacking(f.Absent)); err != nil {
		t.Fatal(err)
	}
	findings := findings.Run(Checks(), input)
	p := &Planner{
		Base:      migration.Base{Tools: nowhere(t), Migration: job.Migration, Findings: findings},
		CanFreeze: input.Freeze == nil,
		Survey:    input.Survey,
		Form:      v1alpha1.BridgeLoadBalancer,
	}
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(findings) },
		"plan":     func() string { return migrationtest.Plan(t, p.Apply()) + renderSurvey(p.Survey) },
		"rollback": func() string { return migrationtest.Plan(t, p.Rollback()) },
		"finish":   func() string { return migrationtest.Plan(t, p.Finish()) },
	}
}

// nowhere is a cluster that is never asked anything.
func nowhere(t *testing.T) migration.Tools {
	t.Helper()
	c, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	return migration.Tools{Cluster: c}
}

// facts are what only a running cluster can tell.
type facts struct {
	Freeze   string              `json:"freeze"`
	DNS      map[string][]string `json:"dns"`
	NoProxy  bool                `json:"noProxy"`
	Minor    string              `json:"minor"`
	Denied   []string            `json:"denied"`
	Domains  map[string]string   `json:"domains"`
	Refused  map[string]string   `json:"refused"`
	Admitted []string            `json:"admitted"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
}

// usualProxy is how kubeadm configures kube-proxy. Fixtures have it unless they say noProxy.
const usualProxy = `
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: |
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    clusterCIDR: 10.244.0.0/16
`

func readFixture(t *testing.T, spec Spec, manifests, factsYAML []byte) Input {
	t.Helper()
	f := facts{Minor: "36"}
	if err := yaml.UnmarshalStrict(factsYAML, &f); err != nil {
		t.Fatal(err)
	}
	snap := &cluster.Snapshot{
		Version:  &version.Info{Major: "1", Minor: f.Minor, GitVersion: "v1." + f.Minor + ".0"},
		Kubelets: map[string]cluster.KubeletAnswer{},
	}
	live := cluster.Live{
		Admitted: map[v1alpha1.BridgeForm]error{}, Inspection: &cluster.Inspection{Unread: map[string]bool{}},
	}
	live.Access = migrationtest.Access(t, Roles().Of(cluster.View, cluster.Operate, cluster.WithoutAgents), f.Denied...)
	for _, a := range live.Access {
		if !a.Allowed {
			live.Inspection.Unread[a.Right.Resource] = true
		}
	}
	for node, domain := range f.Domains {
		answer := cluster.KubeletAnswer{Domain: domain, DNS: f.DNS[node]}
		if domain == "" {
			answer.Err = errors.New("no answer")
		}
		snap.Kubelets[node] = answer
	}
	for _, form := range f.Admitted {
		live.Admitted[v1alpha1.BridgeForm(form)] = nil
	}
	for form, reason := range f.Refused {
		live.Admitted[v1alpha1.BridgeForm(form)] = errors.New(reason)
	}
	if !f.NoProxy {
		manifests = append([]byte(usualProxy+"---\n"), manifests...)
	}
	others := readObjects(t, snap, live.Inspection, manifests)
	survey := Look(snap, spec, nil)
	rules, err := tier.NewRules(&spec.Common, survey.isClusters)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[types.NamespacedName]string{}
	survey.assign(tier.Assign(survey.movers(), rules, answers))
	scanner, err := Scanner(survey)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		live.Inspection.Take(scanner, o)
	}
	return Input{Snapshot: snap, Survey: survey, Live: live}
}

// readObjects sorts manifests into the snapshot and returns those that are only looked through.
func readObjects(t *testing.T, snap *cluster.Snapshot, found *cluster.Inspection, manifests []byte) []client.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	var others []client.Object
	decode := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for doc := range bytes.SplitSeq(manifests, []byte("---\n")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if bytes.Contains(doc, []byte("kind: FelixConfiguration")) {
			if err := found.TakeFelix(doc); err != nil {
				t.Fatal(err)
			}
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
			snap.TakeService(o)
		case *corev1.Namespace:
			snap.Ending = map[string]bool{o.Name: !o.DeletionTimestamp.IsZero()}
		case *corev1.Node:
			snap.Nodes = append(snap.Nodes, *o)
		case *networkingv1.ServiceCIDR:
			snap.ServiceCIDRs = append(snap.ServiceCIDRs, *o)
		case *networkingv1.IPAddress:
			snap.IPAddresses = append(snap.IPAddresses, *o)
		default:
			others = append(others, o.(client.Object))
		}
	}
	return others
}

func renderSurvey(s *Survey) string {
	var b strings.Builder
	for _, e := range s.Stays {
		fmt.Fprintf(&b, "stays: %s %s\n", e.Key(), e.Reason)
	}
	for _, e := range s.Moves {
		fmt.Fprintf(&b, "%s: %s -> %s %s\n", e.Key(), e.Old, e.New, e.Place)
	}
	return b.String()
}

func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

func TestExampleIsValid(t *testing.T) {
	files, err := filepath.Glob("../../../examples/service-cidr/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := spec.Parse(body)
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
		m, err := spec.Parse(body)
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
