package nodes

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

func nodeAt(name, address string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Allocatable: corev1.ResourceList{
				"cpu":    resource.MustParse("2"),
				"memory": resource.MustParse("4Gi"),
				"pods":   resource.MustParse("3"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func podOn(node, name, cpu string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func port(n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: n}} }
}

func alone(p *corev1.Pod) {
	p.Labels["app"] = "alone"
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "alone"}},
		}},
	}}
}

// TestRoom places pods on one new node of two processors and three pods.
func TestRoom(t *testing.T) {
	for _, tt := range []struct {
		name string
		pods []corev1.Pod
		want []string
	}{
		{"fits", []corev1.Pod{podOn("old", "a", "1"), podOn("old", "b", "1")}, nil},
		{"the largest first", []corev1.Pod{podOn("old", "a", "500m"), podOn("old", "b", "2")}, []string{"a: 1 node without enough cpu"}},
		{"beside what is there", []corev1.Pod{podOn("new", "there", "1"), podOn("old", "a", "1500m")}, []string{"a: 1 node without enough cpu"}},
		{
			"as many as it takes",
			[]corev1.Pod{podOn("old", "a", "1m"), podOn("old", "b", "1m"), podOn("old", "c", "1m"), podOn("old", "d", "1m")},
			[]string{"d: 1 node without enough pods"},
		},
		{"host ports", []corev1.Pod{podOn("old", "a", "1m", port(80)), podOn("old", "b", "1m", port(80))}, []string{"b: 1 node with its host ports taken"}},
		{"other host ports", []corev1.Pod{podOn("old", "a", "1m", port(80)), podOn("old", "b", "1m", port(81))}, nil},
		{"anti-affinity", []corev1.Pod{podOn("old", "a", "1m", alone), podOn("old", "b", "1m", alone)}, []string{"b: 1 node with pods that it must not be beside"}},
		{
			"node selector",
			[]corev1.Pod{podOn("old", "a", "1m", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} })},
			[]string{"a: 1 node that its node selector or affinity does not choose"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := spec.Parse([]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: m}\n" +
				"spec: {nodes: {old: {cidrs: [10.1.0.0/16]}, new: {cidrs: [10.2.0.0/16]}}}\n"))
			if err != nil {
				t.Fatal(err)
			}
			job, err := NewJob(migration.Deps{}, m)
			if err != nil {
				t.Fatal(err)
			}
			s := &Inventory{
				Spec: job.Spec, Workloads: &rollout.State{}, Pods: tt.pods,
				Nodes: []corev1.Node{nodeAt("old", "10.1.0.1"), nodeAt("new", "10.2.0.1")},
			}
			var got []string
			for _, m := range s.Room() {
				got = append(got, m.Pod.Name+": "+m.Reasons)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestOrder: nodes with what comes from outside first, then by what they carry.
func TestOrder(t *testing.T) {
	named := func(namespace string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Namespace = namespace }
	}
	m, err := spec.Parse([]byte(`apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: m}
spec:
  nodes: {old: {cidrs: [10.1.0.0/16]}, new: {cidrs: [10.2.0.0/16]}}
  tiers: [{name: test, namespaces: [test]}, {name: shop, namespaces: [shop]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	job, err := NewJob(migration.Deps{}, m)
	if err != nil {
		t.Fatal(err)
	}
	s := &Inventory{
		Spec: job.Spec, Workloads: &rollout.State{},
		Nodes: []corev1.Node{nodeAt("a", "10.1.0.1"), nodeAt("b", "10.1.0.2"), nodeAt("c", "10.1.0.3"), nodeAt("d", "10.1.0.4")},
		Pods: []corev1.Pod{
			podOn(
				"a",
				"cart",
				"1",
			),
			podOn("b", "try", "1", named("test")),
			podOn("c", "edge", "1", named("ingress")),
			podOn("d", "try", "1", named("test")),
		},
		Services: []corev1.Service{
			{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ingress", Name: "edge"},
				Spec: corev1.ServiceSpec{
					Selector:              map[string]string{"app": "edge"},
					ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				},
			},
		},
	}
	if err := job.sortIntoTiers(s); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range s.outstanding(false) {
		got = append(got, l.Name)
	}
	if want := []string{"c", "b", "d", "a"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
