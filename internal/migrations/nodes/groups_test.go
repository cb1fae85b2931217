package nodes

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// machine is an old node of a kind.
func machine(name, address, kind, zone string, change ...func(*corev1.Node)) corev1.Node {
	n := nodeAt(name, address)
	n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelTopologyZone] = kind, zone
	n.Labels[corev1.LabelArchStable], n.Labels["example.com/rack"] = "amd64", "rack-of-"+name
	for _, c := range change {
		c(&n)
	}
	return n
}

// TestGroups: nodes of one kind and place are one group, and labels, taints, volumes and resources
// are told where pods go by them.
func TestGroups(t *testing.T) {
	gpu := func(n *corev1.Node) {
		n.Labels["pool"], n.Labels["karpenter.sh/capacity-type"] = "ml", "spot"
		n.Spec.Taints = []corev1.Taint{
			{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule},
			leavingTaint("m", corev1.TaintEffectNoSchedule),
			{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{}},
		}
		n.Status.Allocatable["example.com/gpu"] = resource.MustParse("4")
	}
	wantsGPU := func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"pool": "ml", corev1.LabelHostname: "g"}
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
	}
	volume := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	s := surveyOf(t, "", []corev1.Pod{
		podOn("a", "web", "500m"), podOn("b", "cart", "1"), podOn("b", "done", "1", ended), podOn("b", "db", "250m", volume),
		podOn("a", "log-a", "100m", of("DaemonSet", "log")), podOn("b", "log-b", "100m", of("DaemonSet", "log")),
		podOn("g", "train", "1", wantsGPU), podOn("new", "there", "1"),
	})
	s.Nodes = []corev1.Node{
		machine("a", "10.1.0.1", "m5.large", "eu-1a"), machine("b", "10.1.0.2", "m5.large", "eu-1a"),
		machine("c", "10.1.0.3", "m5.large", "eu-1b"), machine("g", "10.1.0.4", "p3", "eu-1a", gpu), nodeAt("new", "10.2.0.1"),
	}
	s.Claims = map[types.NamespacedName]*corev1.PersistentVolumeClaim{
		{Namespace: "shop", Name: "data"}: {Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}},
	}
	s.Volumes = map[string]*corev1.PersistentVolume{"v": {Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "topology.example.com/zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"eu-1a"}},
		}}}},
	}}}}
	for i := range s.Nodes {
		s.Nodes[i].Labels["topology.example.com/zone"] = s.Nodes[i].Labels[corev1.LabelTopologyZone]
	}
	want := `[
{"nodes":2,"instanceType":"m5.large","zone":"eu-1a","architecture":"amd64","labels":{"topology.example.com/zone":"eu-1a"},` +
		`"allocatable":{"cpu":"4","memory":"8Gi","pods":"6"},"requests":{"cpu":"1750m","pods":"3"},"largest":{"cpu":"1","pods":"1"},` +
		`"overhead":{"cpu":"100m","pods":"1"},"bound":1}
{"nodes":1,"instanceType":"m5.large","zone":"eu-1b","architecture":"amd64","labels":{"topology.example.com/zone":"eu-1b"},` +
		`"allocatable":{"cpu":"2","memory":"4Gi","pods":"3"}}
{"nodes":1,"instanceType":"p3","zone":"eu-1a","architecture":"amd64",` +
		`"labels":{"karpenter.sh/capacity-type":"spot","pool":"ml","topology.example.com/zone":"eu-1a"},` +
		`"taints":[{"key":"gpu","value":"yes","effect":"NoSchedule"}],"allocatable":{"cpu":"2","example.com/gpu":"4","memory":"4Gi","pods":"3"},` +
		`"requests":{"cpu":"1","example.com/gpu":"1","pods":"1"},"largest":{"cpu":"1","example.com/gpu":"1","pods":"1"}}
]`
	got := "["
	for _, g := range s.Groups() {
		line, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		got += "\n" + string(line)
	}
	if got += "\n]"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestTheDocumentedRequestsAreSent compares the requests of docs/hooks.md with what is sent, field
// by field.
func TestTheDocumentedRequestsAreSent(t *testing.T) {
	page, err := os.ReadFile("../../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	actions := map[string]int{}
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1) {
		if !bytes.Contains(block[1], []byte(`"kind": "NodeRequest"`)) {
			continue
		}
		var request Request
		if err := json.Unmarshal(block[1], &request); err != nil {
			t.Fatal(err)
		}
		actions[request.Action]++
		sent, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		if err := json.Compact(&written, block[1]); err != nil {
			t.Fatal(err)
		}
		if written.String() != string(sent) {
			t.Errorf("documented %s\nbut sent   %s", written.String(), sent)
		}
	}
	if actions[actionProvision] != 1 || actions[actionTerminate] != 1 {
		t.Errorf("requests in the page: %v", actions)
	}
}
