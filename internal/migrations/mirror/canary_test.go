package mirror

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestSpread: canaries go to nodes that are ready and take workloads, one zone after the other, and
// to no more than there are to be.
func TestSpread(t *testing.T) {
	node := func(name, zone string, change ...func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		for _, c := range change {
			c(&n)
		}
		return n
	}
	unready := func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }
	cordoned := func(n *corev1.Node) { n.Spec.Unschedulable = true }
	governing := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	}
	var many []corev1.Node
	for i := range 20 {
		many = append(many, node(fmt.Sprintf("n%02d", i), ""))
	}
	for name, tt := range map[string]struct {
		nodes []corev1.Node
		most  int
		want  []string
	}{
		"none":            {nil, 8, nil},
		"none is ready":   {[]corev1.Node{node("a", "", unready)}, 8, nil},
		"fewer":           {[]corev1.Node{node("b", ""), node("a", "")}, 8, []string{"a", "b"}},
		"more":            {many, 3, []string{"n00", "n01", "n02"}},
		"zone after zone": {[]corev1.Node{node("a", "1"), node("b", "1"), node("c", "2"), node("d", "3")}, 3, []string{"a", "c", "d"}},
		"workers first":   {[]corev1.Node{node("a", "", governing), node("b", "", cordoned), node("c", "")}, 8, []string{"c"}},
		"no workers":      {[]corev1.Node{node("a", "", governing), node("b", "", unready)}, 8, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := spread(tt.nodes, tt.most); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestCanariesNeedAnImage, and only where there is anything to try out.
func TestCanariesNeedAnImage(t *testing.T) {
	targets := []string{"192.0.2.10:5432"}
	for name, tt := range map[string]struct {
		canary     v1alpha1.PodCanarySpec
		own, named string
		ok         bool
	}{
		"no targets":       {v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun}, "", "", true},
		"disabled":         {v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryDisabled, Targets: targets}, "", "", true},
		"none":             {v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun, Targets: targets}, "", "", false},
		"that of the spec": {v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun, Targets: targets}, "", "i", true},
		"that of a build":  {v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryRun, Targets: targets}, "i", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			j := &Job{Spec: Spec{Canary: tt.canary, Common: v1alpha1.MigrationSpec{Image: tt.named}}}
			j.Tools.Image = pull.Image{Name: tt.own}
			got, err := j.absentSecrets(t.Context(), migrationtest.Lacking{}, migrationtest.Lacking{})
			lacks := func(r findings.Result) bool { return strings.Contains(r.Message, "spec.image is empty") }
			if err != nil || slices.ContainsFunc(got, lacks) == tt.ok {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
