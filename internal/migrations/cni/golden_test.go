package cni

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/drained"
	"github.com/replumb/replumb/internal/migrations/cni/inplace"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/proxy"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/testing/golden"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// facts are what objects do not tell.
type facts struct {
	Denied   []string           `json:"denied"`
	Services []string           `json:"services"`
	Status   v1alpha1.CNIStatus `json:"status"`
	Others   []string           `json:"others"`
	Phase    v1alpha1.Phase     `json:"phase"`
	// Absent are Secrets that are not there.
	Absent []string `json:"absent"`
}

// TestGolden reads a cluster, manifests and a Migration from testdata/golden/*.txtar and compares
// what the checks find and the plans that are made. No cluster is needed.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata/golden/*.txtar", sections)
}

// TestEveryCheckFiresAndPasses: each has a golden file for both.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	migrationtest.EveryCheck(t, Checks(), "testdata/golden/*.txtar")
}

func sections(t *testing.T, in map[string][]byte) golden.Sections {
	t.Helper()
	p, input := planner(t, in)
	return golden.Sections{
		"findings": func() string { return migrationtest.Found(findings.Run(Checks(), input)) },
		"plan":     func() string { return migrationtest.Plan(t, p.Apply()) },
		"finish":   func() string { return migrationtest.Plan(t, p.Finish()) },
		"rollback": func() string { return migrationtest.Plan(t, p.Rollback()) },
		"details":  func() string { return strings.Join(p.Details(), "\n") + "\n" },
		"left":     func() string { return p.Left() + "\n" },
	}
}

func planner(t *testing.T, in map[string][]byte) (switchover.Plans, switchover.Input) {
	t.Helper()
	m, err := spec.Parse(in["migration.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(switchover.Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	var f facts
	if err := yaml.UnmarshalStrict(in["facts.yaml"], &f); err != nil {
		t.Fatal(err)
	}
	s := &switchover.Inventory{Spec: job.Spec, Status: f.Status, Present: map[string]*unstructured.Unstructured{}}
	objects, err := manifests.Decode("manifests.yaml", in["manifests.yaml"])
	if err == nil {
		s.Manifests, err = manifests.New(objects)
	}
	s.ManifestsProblem = err
	inPlace := inplace.New(s)
	readCluster(t, inPlace, in["cluster.yaml"])
	for _, text := range f.Services {
		s.Services = append(s.Services, netip.MustParsePrefix(text))
	}
	var strategy switchover.Strategy = drained.New(s)
	switch {
	case job.Spec.ReplaceProxy:
		strategy = proxy.New(inPlace)
	case job.Spec.Serving:
		strategy = inPlace
	}
	input := switchover.Input{Strategy: strategy, Inventory: s, Image: job.Spec.Common.Image}
	for _, name := range f.Others {
		other := v1alpha1.Migration{Status: v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseApplying}}
		other.Name = name
		input.Others = append(input.Others, other)
	}
	input.Access = migrationtest.Access(t, Roles(), f.Denied...)
	nowhere, err := cluster.Connect(&rest.Config{Host: "http://192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	job.Migration.Status.Phase = f.Phase
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	deps := switchover.Deps{Deps: migration.Deps{Cluster: nowhere, Image: pull.Image{Name: "replumb"}, Clock: clock}, Any: nowhere}
	p := &switchover.Planner{Base: migration.Base{Tools: deps.Deps, Migration: job.Migration}, Deps: deps, Inventory: s, Strategy: strategy}
	if input.AbsentSecrets, err = p.AbsentSecrets(t.Context(), migrationtest.Lacking(f.Absent)); err != nil {
		t.Fatal(err)
	}
	return strategy.Plans(p), input
}

// readCluster sorts objects into what a look at the cluster finds.
func readCluster(t *testing.T, s *inplace.Strategy, text []byte) {
	t.Helper()
	objects, err := manifests.Decode("cluster.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	var sets []appsv1.DaemonSet
	owners, scene := &rollout.State{}, spare.Inputs{}
	inspection := &inventory.Scan{}
	scanner, err := references.New(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	convert := func(o *unstructured.Unstructured, into any) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "Node":
			n := corev1.Node{}
			convert(o, &n)
			s.Nodes = append(s.Nodes, n)
		case "Pod":
			p := corev1.Pod{}
			convert(o, &p)
			s.Pods = append(s.Pods, p)
			if switchover.Bare(&p) {
				s.Bare = append(s.Bare, p)
			}
		case "DaemonSet":
			ds := appsv1.DaemonSet{}
			convert(o, &ds)
			sets = append(sets, ds)
			inspection.Take(scanner, &ds)
		case "Deployment":
			d := appsv1.Deployment{}
			convert(o, &d)
			owners.Deployments = append(owners.Deployments, d)
		case "HorizontalPodAutoscaler":
			h := autoscalingv2.HorizontalPodAutoscaler{}
			convert(o, &h)
			scene.Scalers = append(scene.Scalers, h)
		case "Service":
			svc := corev1.Service{}
			convert(o, &svc)
			scene.Services = append(scene.Services, svc)
		case "ReplicaSet":
			rs := metav1.PartialObjectMetadata{}
			convert(o, &rs)
			owners.ReplicaSets = append(owners.ReplicaSets, rs)
		case "StatefulSet":
			set := appsv1.StatefulSet{}
			convert(o, &set)
			s.Workloads.StatefulSets = append(s.Workloads.StatefulSets, set)
			owners.StatefulSets = append(owners.StatefulSets, set)
		case "NetworkPolicy":
			if o.GroupVersionKind().Group == manifests.CalicoGroup {
				s.Policies.Own = append(s.Policies.Own, o)
				continue
			}
			p := networkingv1.NetworkPolicy{}
			convert(o, &p)
			s.Policies.Standard = append(s.Policies.Standard, p)
		case "GlobalNetworkPolicy":
			s.Policies.Own = append(s.Policies.Own, o)
		case "ConfigMap":
			cm := corev1.ConfigMap{}
			convert(o, &cm)
			m := &manifests.ManifestSet{Ranges: s.Ranges}
			m.AddRanges(manifests.RangesOf(&cm))
			s.Ranges = m.Ranges
			inspection.Take(scanner, &cm)
		case "ValidatingWebhookConfiguration":
			c := admissionv1.ValidatingWebhookConfiguration{}
			convert(o, &c)
			s.Webhooks = append(s.Webhooks, switchover.Refusing("ValidatingWebhookConfiguration "+c.Name, c.Webhooks)...)
		}
	}
	if s.Spec.Again > 0 {
		owners.Pods, owners.DaemonSets = s.Pods, sets
		s.Owners = owners
	}
	if s.Spec.Serving {
		scene.Deployments, scene.Nodes = owners.Deployments, s.Nodes
		s.Spares = spare.Find(s.Spec.Spares, scene)
	}
	s.Proxies, s.NodeLocal = inspection.Proxies, inspection.NodeLocal
	s.Networks, s.ProxySets, s.Unknown = manifests.Detect(sets), inventory.ProxySets(sets), manifests.UnknownNetworks(sets)
	if s.From() == v1alpha1.HostLocal {
		s.Ranges = switchover.OfNodes(s.Nodes, nil)
	}
	if set := s.OldSet(); set != nil && s.From() == v1alpha1.Weave {
		m := &manifests.ManifestSet{Ranges: s.Ranges}
		m.AddRanges(podnetwork.WeaveRange(set.Set).Range)
		s.Ranges = m.Ranges
	}
	old := "kube-flannel"
	for _, o := range objects {
		known := slices.ContainsFunc(podnetwork.Remnants(s.From(), old), func(r podnetwork.Remnant) bool {
			return r.Kind == o.GetKind() && r.Name == o.GetName()
		})
		set := s.OldSet()
		if known || set != nil && o.GetKind() == "DaemonSet" && o.GetName() == set.Set.Name {
			s.Old = append(s.Old, o)
		}
		if s.Wanted(o) {
			s.Present[manifests.KeyOf(o).Full()] = o
		}
	}
}

func TestSpecRefuses(t *testing.T) {
	for _, tt := range []struct{ name, cni, field, says string }{
		{"same", "{from: calico, to: calico, manifests: [a]}", "spec.cni.to", "is what spec.cni.from has"},
		{"unknown", "{to: antrea, manifests: [a]}", "spec.cni.to", `"antrea" is not known`},
		{"unknown from", "{from: antrea, to: calico, manifests: [a]}", "spec.cni.from", `"antrea" is not known`},
		{"from Cilium", "{from: cilium, to: calico, manifests: [a]}", "spec.cni.from", `"cilium" is not known`},
		{"from Canal", "{from: canal, to: calico, manifests: [a]}", "spec.cni.from", `"canal" is not known`},
		{"to Weave", "{to: weave, manifests: [a]}", "spec.cni.to", `"weave" is not known`},
		{"no manifests", "{to: calico, manifests: []}", "spec.cni.manifests", "is empty"},
		{"live", "{to: calico, manifests: [a], mode: Live}", "spec.cni.mode", `"Live" is not known`},
		{"range", "{to: calico, manifests: [a], podCIDR: x}", "spec.cni.podCIDR", ""},
		{"host bits", "{to: calico, manifests: [a], podCIDR: 10.1.2.3/16}", "spec.cni.podCIDR", ""},
		{"ignored", "{to: calico, manifests: [a], traffic: {ignore: [x]}}", "spec.cni.traffic.ignore[0]", ""},
		{"window", "{to: calico, manifests: [a], traffic: {window: 1s}}", "spec.cni.traffic.window", "\"1s\" is not within"},
		{"gate", "{to: calico, manifests: [a], gateWait: 0s}", "spec.cni.gateWait", "\"0s\" is not within"},
		{"action in place", "{to: calico, manifests: [a], nodes: {replace: {exec: {command: [a]}}}}", "spec.cni.nodes.replace", "is set"},
		{"empty action", "{to: calico, manifests: [a], nodes: {mode: Replace, replace: {}}}", "spec.cni.nodes.replace", "exactly one"},
		{"parallel", "{to: calico, manifests: [a], nodes: {parallel: -1}}", "spec.cni.nodes.parallel", "-1 is less than 1"},
		{"policies", "{to: calico, manifests: [a], policies: Some}", "spec.cni.policies", "Some"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spec.Parse(
				[]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\nspec: {cni: " + tt.cni + "}\n"),
			)
			if err == nil {
				_, err = NewJob(switchover.Deps{}, m)
			}
			var wrong *spec.Error
			if !errors.As(err, &wrong) || wrong.Field != tt.field || !strings.Contains(wrong.Error(), tt.says) || wrong.Hint == "" {
				t.Errorf("got %v (%+v), want %s: %s", err, wrong, tt.field, tt.says)
			}
		})
	}
}

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../../../examples/cni/*.yaml")
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
		if _, err := NewJob(switchover.Deps{}, m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
