//go:build apiserver && long

package nodes

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// daemonSet has a pod on every node, and a Service that selects them by some of their labels.
func (f *fixture) daemonSet(name string, by map[string]string, tolerations ...corev1.Toleration) {
	f.Helper()
	all := map[string]string{"app": name, "serves": name}
	ds := &appsv1.DaemonSet{ObjectMeta: migrationtest.Named(name), Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: all},
			Spec:       corev1.PodSpec{Tolerations: tolerations, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		},
	}}
	f.Must(server.Create(f.Context(), ds))
	f.Must(server.Create(f.Context(), &corev1.Service{ObjectMeta: migrationtest.Named(name), Spec: corev1.ServiceSpec{
		Selector: by, Ports: []corev1.ServicePort{{Port: 80}},
	}}))
	f.Until("a pod of "+name+" on every node", func() bool { return len(f.selected(name, by)) == 2 })
}

// selected are the nodes of running pods that have some labels; of those that have left their
// Services, with leaving.Gone.
func (f *fixture) selected(name string, by map[string]string) []string {
	all := &corev1.PodList{}
	f.Must(server.List(f.Context(), all, client.InNamespace("shop"), client.MatchingLabels(by)))
	var nodes []string
	for i := range all.Items {
		if p := &all.Items[i]; strings.HasPrefix(p.Name, name+"-") && readyPod(p) {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// TestDaemonSetsLeaveTheirServices: a pod that ends with its node is in no Service when the machine
// ends, and its DaemonSet makes no other one there. One that tolerates everything leaves by a label
// that its DaemonSet does not go by, if there is one.
func TestDaemonSetsLeaveTheirServices(t *testing.T) {
	f := setup(t)
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists}
	by := map[string]map[string]string{"plain": {"app": "plain"}, "hardy": {"app": "hardy", "serves": "hardy"}, "stuck": {"app": "stuck"}}
	f.daemonSet("plain", by["plain"])
	f.daemonSet("hardy", by["hardy"], everything)
	f.daemonSet("stuck", by["stuck"], everything)
	l := live{f.job.Tools, f.job.Spec}
	f.Must(engine.Drive(t.Context(), l.closeNode("a", corev1.TaintEffectNoSchedule)))
	leave := l.leave("a")
	f.Must(engine.Drive(t.Context(), leave))
	if note := leave.(engine.Noter).Note(); !strings.Contains(note, "shop/stuck-") || strings.Contains(note, "plain") {
		t.Errorf("it says: %s", note)
	}
	want := map[string]string{"plain": "b", "hardy": "b", "stuck": "a b"}
	requireSelected := func() {
		t.Helper()
		for name, nodes := range want {
			if got := strings.Join(f.selected(name, by[name]), " "); got != nodes {
				t.Errorf("%s is found on nodes %s, want %s", name, got, nodes)
			}
		}
	}
	requireSelected()
	for name, label := range map[string]string{"plain": "app", "hardy": "serves"} {
		if got := f.selected(name, map[string]string{label: leaving.Gone}); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s has left on nodes %v", name, got)
		}
	}
	f.Must(engine.Drive(t.Context(), l.exclude("a")))
	f.Must(engine.Drive(t.Context(), l.comeBack("a")))
	f.Must(engine.Drive(t.Context(), l.openNode("a")))
	for name := range want {
		want[name] = "a b"
	}
	requireSelected()
	n, err := cordon.Read(t.Context(), l.Cluster, "a")
	f.Must(err)
	if _, has := n.Labels[corev1.LabelNodeExcludeBalancers]; has {
		t.Errorf("node a has the labels %v", n.Labels)
	}
}

// TestNothingLeadsToWhatEnds moves all nodes: at the end of each machine no Service leads to it.
func TestNothingLeadsToWhatEnds(t *testing.T) {
	f := setup(t)
	by := map[string]string{"app": "edge"}
	f.daemonSet("edge", by)
	seen := map[string][]string{}
	f.ending = func(node string) { seen[node] = f.selected("edge", by) }
	f.Must(f.apply())
	for _, node := range []string{"a", "b"} {
		if on, ended := seen[node]; !ended || slices.Contains(on, node) {
			t.Errorf("when node %s ended, its Service led to %v", node, on)
		}
	}
	if got := f.selected("edge", by); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("at the end the Service leads to %v", got)
	}
}
