package servicecidr

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/migrations/servicecidr/trials"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the
// checks find and the plan that is made. No cluster is needed.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", sections)
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	input := readFixture(t, job.Spec, in["cluster.yaml"], in["facts.yaml"])
	input.Image = job.agents().Image().Name
	input.Overlap = job.overlapImage().Name != ""
	input.GateImage = job.image().Name
	var f facts
	if err := yaml.Unmarshal(in["facts.yaml"], &f); err != nil {
		t.Fatal(err)
	}
	if f.Freeze != "" {
		input.Freeze = errors.New(f.Freeze)
	}
	around := input.OverlapFacts()
	for namespace, reason := range f.Edits {
		around.Refused[namespace] = errors.New(reason)
	}
	input.Inventory.ChooseOverlaps(around)
	if f.KeepType != "" {
		input.KeepType = errors.New(f.KeepType)
	}
	if input.AbsentSecrets, err = job.agents().AbsentSecrets(t.Context(), migrationtest.Lacking(f.Absent)); err != nil {
		t.Fatal(err)
	}
	rules, err := tier.NewRules(&job.Spec.Common, input.Inventory.IsClusterService)
	if err != nil {
		t.Fatal(err)
	}
	refresher := refresher{
		tools:     nowhere(t),
		inventory: input.Inventory,
		rules:     rules,
		of:        job.Migration,
		to:        engine.Forward,
		workloads: input.Workloads,
	}
	_, input.Restarts = refresher.plan()
	findings := findings.Run(Checks(), input)
	p := &Planner{
		Base:      migration.Base{Tools: nowhere(t), Migration: job.Migration, Findings: findings},
		CanFreeze: input.Freeze == nil,
		Inventory: input.Inventory,
		Form:      v1alpha1.BridgeLoadBalancer,
		Cilium:    around.Cilium,
	}
	p.setStore(job.store())
	if input.Overlap {
		p.Overlap = job.Overlap()
		p.Overlap.Cluster = p.Tools.Cluster
	}
	p.Forms, p.Form = input.Forms()
	if p.Kubeadm = job.kubeadmGates(input); p.Kubeadm != nil {
		p.Agents = job.newAgents(input) // which have rights in the same namespace
	}
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(findings) },
		"plan":     func() string { return migrationtest.Plan(t, p.Apply()) + renderInventory(p.Inventory) },
		"rollback": func() string { return migrationtest.Plan(t, p.Rollback()) },
		"finish":   func() string { return migrationtest.Plan(t, p.Finish()) },
	}
}

// nowhere is a cluster that is never asked anything.
func nowhere(t *testing.T) migration.Deps {
	t.Helper()
	c, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	return migration.Deps{Cluster: c}
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
	// RefusedIn are forms that some namespaces refuse beside, with the reason.
	RefusedIn map[string]map[string]string `json:"refusedIn"`
	// KeepType is why there can be no policy that keeps the type of Services.
	KeepType string `json:"keepType"`
	// Edits are refused of Services that keep an address themselves, by namespace.
	Edits map[string]string `json:"edits"`
	// Hops and Ranges are other writes that are refused, as objects with the reason.
	Hops   map[string]string `json:"hops"`
	Ranges map[string]string `json:"ranges"`
	// NodePorts is the range of node ports.
	NodePorts string `json:"nodePorts"`
	// Unanswered are errors in the place of answers.
	Unanswered []string `json:"unanswered"`
	// DualWrite is whether API servers write addresses twice.
	DualWrite apiserver.DualWrite `json:"dualWrite"`
	// Bitmap says that the one range is a flag of the API servers, Guard why addresses cannot be
	// kept from others, Back that the migration goes back.
	Bitmap bool   `json:"bitmap"`
	Guard  string `json:"guard"`
	Back   bool   `json:"back"`
	// Kept says of Services that move by etcd why they cannot.
	Kept map[string]string `json:"kept"`
	// Unread are resources that no role lists, and the user may not either.
	Unread []string `json:"unread"`
	// Unsearched says why kinds that replumb does not know were not looked through.
	Unsearched map[string]string `json:"unsearched"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
	// Kubeadm is what gates: Kubeadm finds.
	Kubeadm *struct {
		ControlPlanes []string `json:"controlPlanes"`
		Configuration string   `json:"configuration"`
		Missing       string   `json:"missing"`
	} `json:"kubeadm"`
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

func readFixture(t *testing.T, spec services.Spec, manifests, factsYAML []byte) checks.Input {
	t.Helper()
	f := facts{Minor: "36"}
	if err := yaml.UnmarshalStrict(factsYAML, &f); err != nil {
		t.Fatal(err)
	}
	snap := &inventory.Snapshot{
		Version:  &version.Info{Major: "1", Minor: f.Minor, GitVersion: "v1." + f.Minor + ".0"},
		Kubelets: map[string]inventory.KubeletAnswer{},
	}
	snap.Ending, snap.NamespaceLabels, snap.Meshed = map[string]bool{}, map[string]map[string]string{}, map[string]string{}
	live := inventory.Live{Inspection: &inventory.Scan{Unread: map[string]bool{}}}
	live.Access = migrationtest.Access(t, Roles().Of(access.View, access.Operate, access.WithoutAgents), f.Denied...)
	for _, a := range live.Access {
		if !a.Allowed {
			live.Inspection.Unread[a.Right.Resource] = true
			live.Inspection.Unread[a.Right.Resource+"."+a.Right.Group] = true // as custom resources are called
		}
	}
	for node, domain := range f.Domains {
		answer := inventory.KubeletAnswer{Domain: domain, DNS: f.DNS[node]}
		if domain == "" {
			answer.Err = errors.New("no answer")
		}
		snap.Kubelets[node] = answer
	}
	if !f.NoProxy {
		manifests = append([]byte(usualProxy+"---\n"), manifests...)
	}
	if f.Bitmap {
		snap.Ranges = serviceranges.Bitmap
	}
	others := readObjects(t, snap, live.Inspection, manifests)
	inventory := services.Load(snap, spec)
	rules, err := tier.NewRules(&spec.Common, inventory.IsClusterService)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[types.NamespacedName]string{}
	inventory.AssignTiers(tier.Assign(inventory.Services(), rules, answers))
	scanner, err := checks.NewReferenceScanner(inventory)
	if err != nil {
		t.Fatal(err)
	}
	trials := f.trials(t, inventory)
	for _, o := range others {
		if q, ok := o.(*corev1.ResourceQuota); ok {
			trials.Quotas = append(trials.Quotas, *q)
			continue
		}
		live.Inspection.Take(scanner, o)
	}
	if live.Inspection.Unread["resourcequotas"] {
		trials.QuotasErr = errors.New("denied")
	}
	inventory.MarkCalled(live.Inspection.Called)
	inventory.MarkRouted(live.Inspection.Routes)
	in := checks.Input{
		Snapshot:  snap,
		Inventory: inventory,
		Live:      live,
		Trials:    trials,
		Workloads: running(snap, others),
		DualWrite: f.DualWrite,
		Back:      f.Back,
	}
	if k := f.Kubeadm; k != nil {
		in.Kubeadm = &kubeadmgate.KubeadmState{ControlPlanes: k.ControlPlanes, Configuration: k.Configuration}
		if k.Missing != "" {
			in.Kubeadm.Err = errors.New(k.Missing)
		}
	}
	if f.Guard != "" {
		in.Guard = errors.New(f.Guard)
	}
	for _, text := range f.Unanswered {
		in.Unanswered = append(in.Unanswered, errors.New(text))
	}
	in.Storage.Refused = map[types.NamespacedName]error{}
	live.Inspection.Unsearched = f.Unsearched
	for _, resource := range f.Unread {
		live.Inspection.Unread[resource] = true
	}
	for name, reason := range f.Kept {
		in.Storage.Refused[types.NamespacedName{Namespace: "shop", Name: name}] = errors.New(reason)
	}
	return in
}

// trials are those that the facts have come out so.
func (f *facts) trials(t *testing.T, s *services.Inventory) trials.Trials {
	t.Helper()
	found := trials.Trials{Forms: map[string]map[v1alpha1.BridgeForm]error{}}
	refused := func(all map[string]string) (out []trials.RefusedWrite) {
		for object, reason := range all {
			out = append(out,
				trials.RefusedWrite{Object: object, What: "is refused", Refusal: &admission.Refusal{By: "a policy", Err: errors.New(reason)}})
		}
		return out
	}
	found.Hops, found.Ranges = refused(f.Hops), refused(f.Ranges)
	for _, e := range s.Pending() {
		if e.Bridge != nil {
			continue
		}
		forms := map[v1alpha1.BridgeForm]error{}
		for _, form := range f.Admitted {
			forms[v1alpha1.BridgeForm(form)] = nil
		}
		for form, reason := range f.Refused {
			forms[v1alpha1.BridgeForm(form)] = errors.New(reason)
		}
		for form, reason := range f.RefusedIn[e.Service.Namespace] {
			forms[v1alpha1.BridgeForm(form)] = errors.New(reason)
		}
		if found.Forms[e.Service.Namespace] = forms; len(forms) == 0 {
			delete(found.Forms, e.Service.Namespace)
		}
	}
	if f.NodePorts != "" {
		r, err := utilnet.ParsePortRange(f.NodePorts)
		if err != nil {
			t.Fatal(err)
		}
		found.NodePorts = apiserver.NodePorts{Range: *r, Seen: true}
	}
	return found
}

// running is what runs in a cluster, of its objects.
func running(snap *inventory.Snapshot, others []client.Object) *rollout.State {
	s := &rollout.State{Away: map[string]bool{}}
	for _, o := range others {
		switch o := o.(type) {
		case *corev1.Pod:
			s.Pods = append(s.Pods, *o)
		case *appsv1.Deployment:
			s.Deployments = append(s.Deployments, *o)
		case *appsv1.StatefulSet:
			s.StatefulSets = append(s.StatefulSets, *o)
		case *appsv1.DaemonSet:
			s.DaemonSets = append(s.DaemonSets, *o)
		case *appsv1.ReplicaSet:
			s.ReplicaSets = append(s.ReplicaSets, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
		}
	}
	for i := range snap.Nodes {
		s.Away[snap.Nodes[i].Name] = !slices.ContainsFunc(snap.Nodes[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	return s
}

// readObjects sorts manifests into the snapshot and returns those that are only looked through.
func readObjects(t *testing.T, snap *inventory.Snapshot, found *inventory.Scan, manifests []byte) []client.Object {
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
		if bytes.Contains(doc, []byte("kind: APIService")) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(doc, &u.Object); err != nil {
				t.Fatal(err)
			}
			others = append(others, u)
			continue
		}
		if bytes.Contains(doc, []byte("kind: FelixConfiguration")) {
			if err := found.TakeFelix(doc); err != nil {
				t.Fatal(err)
			}
			continue
		}
		o, _, err := decode.Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) { // of a kind that others define
			u := &unstructured.Unstructured{}
			err, o = yaml.Unmarshal(doc, &u.Object), u
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		switch o := o.(type) {
		case *corev1.Service:
			if o.Spec.ClusterIP != "" && o.Spec.ClusterIPs == nil {
				o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
			}
			snap.TakeService(o)
			others = append(others, o)
		case *corev1.Namespace:
			snap.TakeNamespace(o)
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

func renderInventory(s *services.Inventory) string {
	var b strings.Builder
	for _, e := range s.Stays {
		fmt.Fprintf(&b, "stays: %s %s\n", e.Key(), e.Reason)
	}
	for _, e := range s.Moves {
		fmt.Fprintf(&b, "%s: %s -> %s %s\n", e.Key(), e.Old, e.New, e.Position)
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
		if _, err := NewJob(Deps{}, m); err != nil {
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
		job, err := NewJob(Deps{}, m)
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
		free     int
		admitted map[v1alpha1.BridgeForm]error
		want     v1alpha1.BridgeForm
	}{
		{v1alpha1.BridgeAuto, 10, 100, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: nil, v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeLoadBalancer},
		{v1alpha1.BridgeAuto, 10, 100, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: no, v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeExternalIPs},
		{v1alpha1.BridgeAuto, bridge.LoadBalancerLimit + 1, 2768, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeExternalIPs},
		{v1alpha1.BridgeAuto, 51, 100, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: nil, v1alpha1.BridgeExternalIPs: nil}, v1alpha1.BridgeExternalIPs},
		{v1alpha1.BridgeLoadBalancer, 10, 100, map[v1alpha1.BridgeForm]error{v1alpha1.BridgeLoadBalancer: no}, ""},
		{v1alpha1.BridgeAuto, 10, 100, nil, ""},
	} {
		if got, _ := bridge.Choose(bridge.Candidates(tt.wish, tt.needed, tt.free), tt.admitted); got != tt.want {
			t.Errorf("%s, %d of %d, %v: %q, want %q", tt.wish, tt.needed, tt.free, tt.admitted, got, tt.want)
		}
	}
}
