package lossguard

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/agentset"
)

// TestWitnesses: what a node has seen of API servers counts if its own agent has said it in this
// run, and lately. The first case is the control.
func TestWitnesses(t *testing.T) {
	now, limit := begin, 42*time.Second
	node := func(name string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return n
	}
	// says has the agent of a report at a time of the node's clock, which is an hour behind.
	says := func(instance string, sequence int64, looked time.Duration) *v1alpha1.NodeReport {
		clock := now.Add(-time.Hour)
		r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		r.Status.Agents = []v1alpha1.AgentReport{{
			Origin: v1alpha1.FromHost, Instance: instance, Sequence: sequence, ReportedAt: metav1.NewMicroTime(clock),
		}}
		r.Status.APIServers = []v1alpha1.APIServerReport{{Address: "10.0.0.5:6443", SeenAt: metav1.NewMicroTime(clock.Add(-looked))}}
		return r
	}
	for _, tt := range []struct {
		name    string
		reports []*v1alpha1.NodeReport
		// later is how much time passes after the last.
		later time.Duration
		nodes func(*corev1.Node)
		// none says that the node is no witness; silent is why nothing of it counts; saw is of how
		// many API servers it has a word.
		none   bool
		silent string
		saw    int
	}{
		{name: "its own agent", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, 6*time.Second)}, saw: 1},
		{name: "nothing", silent: "its agent has not reported"},
		{name: "from before the run", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0)}, silent: "not reported in this run"},
		{name: "the same again", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 1, 0)}, silent: "not reported in this run"},
		{name: "silent since", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, 0)}, later: time.Minute, silent: "not reported for 1m0s"},
		{name: "an old look", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, time.Minute)}},
		{name: "an old look in an old report", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, 30*time.Second)}, later: 30 * time.Second},
		{name: "a look to come", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, -time.Hour)}, later: 30 * time.Second, saw: 1},
		{name: "the agent of another node", reports: []*v1alpha1.NodeReport{says("b-host", 1, 0), says("b-host", 2, 0)}, silent: `"b-host", which is no pod of replumb there`},
		{name: "the agent of the other network", reports: []*v1alpha1.NodeReport{says("a-pod", 1, 0), says("a-pod", 2, 0)}, silent: "which is no pod of replumb there"},
		{name: "a node that is not ready", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, 0)}, nodes: func(n *corev1.Node) { n.Status.Conditions = nil }, none: true},
		{name: "a node without agents", reports: []*v1alpha1.NodeReport{says("a-host", 1, 0), says("a-host", 2, 0)}, nodes: func(n *corev1.Node) { n.Labels[v1alpha1.LabelAgents] = v1alpha1.NoAgents }, none: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &Watch{Now: func() time.Time { return now.Add(tt.later) }}
			seen := newReports(func() time.Time { return now }, func(*v1alpha1.NodeReport, news) {})
			w.latest = seen
			at := now.Add(-time.Second)
			seen.now = func() time.Time { return at }
			seen.known.take([]corev1.Pod{
				agentPod("a", v1alpha1.RoleAgent, "a-host"), agentPod("a", v1alpha1.RoleProbe, "a-pod"),
				agentPod("b", v1alpha1.RoleAgent, "b-host"),
			})
			n := node("a")
			if tt.nodes != nil {
				tt.nodes(n)
			}
			w.nodes.set([]corev1.Node{*n})
			for _, r := range tt.reports {
				if err := seen.Update(r); err != nil {
					t.Fatal(err)
				}
				at = now
			}
			got := w.witnesses(limit)
			if tt.none {
				if len(got) > 0 {
					t.Errorf("witnesses %+v", got)
				}
				return
			}
			if len(got) != 1 || len(got[0].Saw) != tt.saw || !strings.Contains(got[0].Silent, tt.silent) ||
				(got[0].Silent == "") != (tt.silent == "") {
				t.Errorf("witnesses %+v", got)
			}
		})
	}
}

// TestControlPlanesAreKnown by their label, and agents that there are none of say nothing.
func TestControlPlanesAreKnown(t *testing.T) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{labelControlPlane: ""}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	w := &Watch{}
	w.nodes.set([]corev1.Node{n})
	agents := &Agents{Watch: w, Set: &agentset.Set{}}
	if got := agents.Witnesses(); len(got) != 1 || !got[0].ControlPlane || got[0].Node != "a" {
		t.Errorf("witnesses %+v", got)
	}
	for _, none := range []*Agents{nil, {}} {
		if got := none.Witnesses(); got != nil {
			t.Errorf("without agents: %+v", got)
		}
	}
}
