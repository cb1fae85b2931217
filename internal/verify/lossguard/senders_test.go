package lossguard

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

func agentPod(node, role, uid string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Labels: map[string]string{v1alpha1.LabelRole: role}},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func reportBy(node, host, pod string) *v1alpha1.NodeReport {
	r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: node}}
	st := &r.Status
	st.Agents = []v1alpha1.AgentReport{{Origin: v1alpha1.FromHost, Instance: host}, {Origin: v1alpha1.FromPod, Instance: pod}}
	st.Probes = []v1alpha1.ProbeReport{
		{Name: "host/name", Origin: v1alpha1.FromHost, Instance: host}, {Name: "pod/name", Origin: v1alpha1.FromPod, Instance: pod},
	}
	st.Connects = &v1alpha1.ConnectReport{Instance: host}
	st.Barriers = []v1alpha1.BarrierReport{{Sentinel: "s"}}
	st.Clients, st.MoreClients, st.ForgottenClients = []v1alpha1.OldAddressClient{{Address: "10.96.0.9:80"}}, 3, 3
	st.APIServers = []v1alpha1.APIServerReport{{Address: "10.0.0.5:6443"}}
	return r
}

// TestOnlyPodsOfTheNodeReport has reports in whose names others speak: a pod of another node, of
// the other network, and none.
func TestOnlyPodsOfTheNodeReport(t *testing.T) {
	known := instances{}
	known.take([]corev1.Pod{
		agentPod(
			"a",
			v1alpha1.RoleAgent,
			"a-host",
		),
		agentPod("a", v1alpha1.RoleProbe, "a-pod"),
		agentPod("b", v1alpha1.RoleAgent, "b-host"),
		agentPod("a", v1alpha1.RoleCanary, "a-canary"),
		agentPod("", v1alpha1.RoleAgent, "unscheduled"),
	})
	for _, tt := range []struct {
		host, pod                        string
		agents, probes, strangers, seenC int
	}{
		{"a-host", "a-pod", 2, 2, 0, 1},
		{"b-host", "a-pod", 1, 1, 1, 0},
		{"a-pod", "a-host", 0, 0, 2, 0},
		{"a-host", "made-up", 1, 1, 1, 1},
		{"a-canary", "a-pod", 1, 1, 1, 0},
		{"unscheduled", "", 0, 0, 2, 0},
	} {
		r := reportBy("a", tt.host, tt.pod)
		own, strangers := known.admit(r)
		st := own.Status
		if len(st.Agents) != tt.agents || len(st.Probes) != tt.probes || len(strangers) != tt.strangers || len(st.Clients) != tt.seenC ||
			len(st.Barriers) != tt.seenC || (st.Connects != nil) != (tt.seenC == 1) || st.MoreClients != 3*tt.seenC ||
			st.ForgottenClients != 3*tt.seenC || len(st.APIServers) != tt.seenC {
			t.Errorf("%s and %s: %+v, strangers %v", tt.host, tt.pod, st, strangers)
		}
		if len(r.Status.Agents) != 2 || len(r.Status.Barriers) != 1 {
			t.Errorf("the report itself was changed: %+v", r.Status)
		}
	}
}

// TestStrangersAreNamed: a forged barrier is not passed, the node is named, and what its pod says
// counts as soon as the pod is known.
func TestStrangersAreNamed(t *testing.T) {
	r := newReports(func() time.Time { return begin }, func(*v1alpha1.NodeReport, news) {})
	if err := r.Update(reportBy("a", "forged", "a-pod")); err != nil {
		t.Fatal(err)
	}
	r.know([]corev1.Pod{agentPod("a", v1alpha1.RoleAgent, "a-host"), agentPod("a", v1alpha1.RoleProbe, "a-pod")})
	behind := func() int { return len(r.tally.Behind("s", []string{"a"})) }
	both := []Agent{{"a", v1alpha1.FromHost}, {"a", v1alpha1.FromPod}}
	if said := strings.Join(r.tally.Unarmed(both), "; "); behind() != 1 ||
		!strings.Contains(said, `node a: its report from the network of hosts is by "forged", which is no pod of replumb there`) {
		t.Errorf("behind are %d; %s", behind(), said)
	}
	if err := r.Update(reportBy("a", "a-host", "a-pod-2")); err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(r.tally.Unarmed(both), "; "); behind() != 0 || strings.Contains(said, "forged") {
		t.Errorf("behind are %d; %s", behind(), said)
	}
	r.know([]corev1.Pod{agentPod("a", v1alpha1.RoleProbe, "a-pod-2")})
	if said := strings.Join(r.tally.Unarmed(both), "; "); strings.Contains(said, "no pod") || len(r.strange) > 0 {
		t.Errorf("when its pod is known: %s", said)
	}
}
