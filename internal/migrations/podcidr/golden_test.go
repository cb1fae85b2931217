package podcidr

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/migrations/podcidr/pools"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestGolden reads a cluster and a Migration from testdata/golden/*.txtar and compares what the
// checks find and the plans that are made. No cluster is needed.
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
	strategy, facts := readCluster(t, job.Spec, in["cluster.yaml"], in["facts.yaml"])
	rules, err := tier.NewRules(&job.Spec.Common, ownServices)
	if err != nil {
		t.Fatal(err)
	}
	nowhere, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	p := &podmove.Planner{
		Base: migration.Base{
			Tools: Deps{
				Cluster: nowhere, Image: pull.Image{Name: "replumb"},
				Clock: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			},
			Migration: job.Migration,
		},
		Inventory: strategy.Shared(), Rules: rules, Agents: job.newAgents(strategy),
	}
	if facts.AbsentSecrets, err = job.absentSecrets(t.Context(), absentIn(t, in["facts.yaml"]), p, strategy); err != nil {
		t.Fatal(err)
	}
	found := strategy.Check(facts)
	p.Findings = found
	plans := strategy.Plans(p)
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(found) },
		"plan":     func() string { return renderPlan(t, plans) },
		"finish":   func() string { return migrationtest.Plan(t, plans.Finish()) },
		"rollback": func() string { return migrationtest.Plan(t, plans.Rollback()) },
	}
}

// absentIn is a cluster without the Secrets that facts name.
func absentIn(t *testing.T, factsYAML []byte) migrationtest.Lacking {
	t.Helper()
	var f facts
	if err := yaml.UnmarshalStrict(factsYAML, &f); err != nil {
		t.Fatal(err)
	}
	return f.Absent
}

// facts are what only a running cluster can tell.
type facts struct {
	Denied []string `json:"denied"`
	// Unread are resources that could not be looked through.
	Unread []string `json:"unread"`
	// Blind says that the cluster was not looked through.
	Blind bool `json:"blind"`
	// Unreservable says that Calico is of before v3.22.
	Unreservable bool `json:"unreservable"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
	// Kubeadm is what gates: Kubeadm finds.
	Kubeadm *struct {
		ControlPlanes []string `json:"controlPlanes"`
		Configuration string   `json:"configuration"`
		Missing       string   `json:"missing"`
	} `json:"kubeadm"`
	// Others are migrations that are under way; those called mirror are mirrors.
	Others []string `json:"others"`
}

// readCluster sorts manifests into what the checks look at. A cluster without pools is one whose
// Nodes carry the ranges.
func readCluster(t *testing.T, s Spec, manifests, factsYAML []byte) (podmove.Strategy, podmove.Facts) {
	t.Helper()
	var f facts
	if err := yaml.UnmarshalStrict(factsYAML, &f); err != nil {
		t.Fatal(err)
	}
	known := &podmove.Facts{}
	known.Live.Access = migrationtest.Access(t, Roles(), f.Denied...)
	for _, name := range f.Others {
		other := v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseMoved}}
		if name == "mirror" {
			other.Spec.Mirror = &v1alpha1.MirrorSpec{}
		}
		known.Others = append(known.Others, other)
	}
	in := &manifestReader{
		T: t, facts: known, state: &calico.State{Ready: true},
		shared: &podmove.Inventory{Spec: s, Workloads: &rollout.State{}, Configs: map[string]map[string]string{}},
		around: pools.Surroundings{Namespaces: map[string]map[string]string{}, Unreservable: f.Unreservable},
	}
	for doc := range bytes.SplitSeq(manifests, []byte("---\n")) {
		if len(bytes.TrimSpace(doc)) > 0 {
			in.read(doc)
		}
	}
	in.scene.Deployments, in.scene.Nodes = in.shared.Workloads.Deployments, in.shared.Nodes
	in.shared.Spares = spare.Find(s.Spares(), in.scene)
	strategy := in.strategy()
	if nodes, carry := strategy.(*noderanges.Inventory); carry && f.Kubeadm != nil {
		nodes.Kubeadm = &kubeadmgate.KubeadmState{ControlPlanes: f.Kubeadm.ControlPlanes, Configuration: f.Kubeadm.Configuration}
		if f.Kubeadm.Missing != "" {
			nodes.Kubeadm.Err = errors.New(f.Kubeadm.Missing)
		}
	}
	if f.Blind {
		return strategy, *known
	}
	survey := strategy.Shared()
	scanner, err := references.New(survey.Spec.From, survey.Spec.To, nil)
	if err != nil {
		t.Fatal(err)
	}
	known.Live.Inspection = &inventory.Scan{Unread: map[string]bool{}}
	for _, resource := range f.Unread {
		known.Live.Inspection.Unread[resource] = true
	}
	for _, o := range in.all {
		known.Live.Inspection.Take(scanner, o)
	}
	return strategy, *known
}

func (r *manifestReader) strategy() podmove.Strategy {
	r.Helper()
	if len(r.state.Pools) == 0 {
		survey, err := noderanges.New(r.shared, noderanges.Sources{Cilium: r.cilium()})
		if err != nil {
			r.Fatal(err)
		}
		return survey
	}
	survey, err := pools.New(r.shared, r.state)
	if err != nil {
		r.Fatal(err)
	}
	survey.Surroundings = r.around
	return survey
}

// cilium is nil where no DaemonSet is Cilium's.
func (r *manifestReader) cilium() *noderanges.CiliumState {
	r.Helper()
	if !slices.ContainsFunc(r.shared.Workloads.DaemonSets, func(ds appsv1.DaemonSet) bool { return podnetwork.Of(&ds) == v1alpha1.Cilium }) {
		return nil
	}
	var config *corev1.ConfigMap
	all, podPools, pool := map[string]*ciliumipam.CiliumNode{}, map[string]*ciliumipam.PodPool{}, ""
	for _, o := range r.all {
		if cm, ok := o.(*corev1.ConfigMap); ok && cm.Name == podnetwork.CiliumConfig {
			config = cm
		}
	}
	several := config != nil && config.Data[ciliumipam.ModeKey] == ciliumipam.MultiPool
	if several {
		pool = ciliumipam.DefaultPool(config)
	}
	for _, o := range r.all {
		u, ok := o.(*unstructured.Unstructured)
		switch {
		case ok && u.GetKind() == "CiliumNode":
			n, err := ciliumipam.ReadNode(u, pool)
			r.must(err)
			all[n.Name] = n
		case ok && u.GetKind() == "CiliumPodIPPool":
			p, err := ciliumipam.ReadPool(u)
			r.must(err)
			podPools[p.Name] = p
		}
	}
	s := noderanges.NewCilium(config, all)
	if several {
		s.TakePools(podPools)
	}
	return s
}

func (r *manifestReader) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

type manifestReader struct {
	*testing.T
	facts  *podmove.Facts
	state  *calico.State
	shared *podmove.Inventory
	around pools.Surroundings
	all    []client.Object
	scene  spare.Inputs
}

func (r *manifestReader) read(doc []byte) {
	r.Helper()
	u := &unstructured.Unstructured{}
	body, err := yaml.YAMLToJSON(doc)
	if err == nil {
		err = u.UnmarshalJSON(body)
	}
	if err != nil {
		r.Fatalf("%v in\n%s", err, doc)
	}
	switch u.GetKind() {
	case "IPPool":
		p, err := calico.ReadPool(u)
		if err != nil {
			r.Fatal(err)
		}
		r.state.Pools = append(r.state.Pools, p)
		return
	case "ClusterInformation":
		r.state.Ready, _, _ = unstructured.NestedBool(u.Object, "spec", "datastoreReady")
		return
	case "Installation":
		i, err := pools.ReadInstallation(u)
		if err != nil {
			r.Fatal(err)
		}
		r.around.Installations = append(r.around.Installations, i)
		return
	}
	decode := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	o, _, err := decode.Decode(doc, nil, nil)
	if runtime.IsNotRegisteredError(err) { // of a kind that others define
		r.all = append(r.all, u)
		return
	}
	if err != nil {
		r.Fatalf("%v in\n%s", err, doc)
	}
	r.take(o.(client.Object))
}

func (r *manifestReader) take(o client.Object) {
	r.all = append(r.all, o)
	switch o := o.(type) {
	case *corev1.Node:
		r.shared.Nodes = append(r.shared.Nodes, *o)
	case *corev1.Namespace:
		r.around.Namespaces[o.Name] = o.Annotations
	case *corev1.ConfigMap:
		r.shared.Configs[o.Namespace+"/"+o.Name] = o.Data
	case *corev1.Service:
		r.scene.Services = append(r.scene.Services, *o)
	case *autoscalingv2.HorizontalPodAutoscaler:
		r.scene.Scalers = append(r.scene.Scalers, *o)
	case *networkingv1.ServiceCIDR:
		r.facts.ServiceCIDRs = append(r.facts.ServiceCIDRs, *o)
	case *corev1.Pod:
		o.Status.PodIPs = []corev1.PodIP{{IP: o.Status.PodIP}}
		r.shared.Workloads.Pods = append(r.shared.Workloads.Pods, *o)
	case *appsv1.Deployment:
		r.shared.Workloads.Deployments = append(r.shared.Workloads.Deployments, *o)
	case *appsv1.ReplicaSet:
		r.shared.Workloads.ReplicaSets = append(r.shared.Workloads.ReplicaSets, metav1.PartialObjectMetadata{ObjectMeta: o.ObjectMeta})
	case *appsv1.StatefulSet:
		r.shared.Workloads.StatefulSets = append(r.shared.Workloads.StatefulSets, *o)
	case *appsv1.DaemonSet:
		r.shared.Workloads.DaemonSets = append(r.shared.Workloads.DaemonSets, *o)
	case *policyv1.PodDisruptionBudget:
		r.shared.Workloads.Budgets = append(r.shared.Workloads.Budgets, *o)
	}
}

// TestEveryCheckFiresAndPasses looks for fixtures in which each check finds something, and means to
// find nothing.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

func renderPlan(t *testing.T, p Plans) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(migrationtest.Plan(t, p.Apply()))
	for _, r := range p.Kept() {
		fmt.Fprintf(&b, "left: %s %s\n", r.Pod, r.Reason)
	}
	return b.String()
}

// specRefusal is a Migration that is refused.
type specRefusal struct {
	name, podCIDR, field, says string
}

func TestSpecRefuses(t *testing.T) {
	for _, tt := range []specRefusal{
		{"no target", "{to: []}", "spec.podCIDR.to", "is empty"},
		{"no range", "{to: [pods]}", "spec.podCIDR.to[0]", "pods"},
		{"host bits", "{to: [10.245.0.1/16]}", "spec.podCIDR.to[0]", "10.245.0.1/16"},
		{"IPv6", "{to: ['fd00::/64']}", "spec.podCIDR.to", "has a range that is not IPv4"},
		{"targets overlap", "{to: [10.245.0.0/16, 10.245.8.0/24]}", "spec.podCIDR.to", "overlap each other"},
		{"target within source", "{from: [10.0.0.0/8], to: [10.245.0.0/16]}", "spec.podCIDR.to", "overlaps a range in spec.podCIDR.from"},
		{"target is source", "{from: [10.244.0.0/16], to: [10.244.0.0/16]}", "spec.podCIDR.to", "overlaps"},
		{"not one for each", "{from: [10.243.0.0/16, 10.244.0.0/16], to: [10.245.0.0/16]}", "spec.podCIDR.to", "has 1 ranges for 2 in from"},
		{"source is no range", "{from: [x], to: [10.245.0.0/16]}", "spec.podCIDR.from[0]", "x"},
		{"network is no range", "{networks: [x], to: [10.245.0.0/16]}", "spec.podCIDR.networks[0]", "x"},
		{"block larger than the target", "{blockSize: 20, to: [10.245.0.0/24]}", "spec.podCIDR.blockSize", "larger than the target"},
		{"huge block", "{blockSize: 19, to: [10.0.0.0/8]}", "spec.podCIDR.blockSize", "19 is not within"},
		{"no block", "{blockSize: 33, to: [10.0.0.0/8]}", "spec.podCIDR.blockSize", "33 is not within"},
		{"unknown prepare", "{to: [10.245.0.0/16], prepare: {mode: Hope}}", "spec.podCIDR.prepare.mode", "Hope"},
		{"no Deployment", "{to: [10.245.0.0/16], prepare: {deployments: [web]}}", "spec.podCIDR.prepare.deployments[0]", `"web" is not namespace/name`},
		{"too many slashes", "{to: [10.245.0.0/16], prepare: {deployments: [a/b/c]}}", "spec.podCIDR.prepare.deployments[0]", "is not namespace/name"},
		{"unknown canary", "{to: [10.245.0.0/16], canary: {mode: Sing}}", "spec.podCIDR.canary.mode", "Sing"},
		{"unknown policy", "{to: [10.245.0.0/16], roll: {barePods: Burn}}", "spec.podCIDR.roll.barePods", "Burn"},
		{"too many at once", "{to: [10.245.0.0/16], roll: {parallel: 101}}", "spec.podCIDR.roll.parallel", "101 is not within"},
		{"no time", "{to: [10.245.0.0/16], roll: {timeout: 0s}}", "spec.podCIDR.roll.timeout", "is not positive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spec.Parse(
				[]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {podCIDR: " + tt.podCIDR + "}\n"),
			)
			if err == nil {
				_, err = NewJob(Deps{}, m)
			}
			var wrong *spec.Error
			if !errors.As(err, &wrong) || wrong.Field != tt.field || !strings.Contains(wrong.Problem, tt.says) || wrong.Hint == "" {
				t.Errorf("got %#v, want %s: %s", err, tt.field, tt.says)
			}
		})
	}
}
