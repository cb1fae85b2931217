package agentset

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/workload"
)

const host, pod = v1alpha1.FromHost, v1alpha1.FromPod

// scene is what there is to see, of nodes whose agents are all well unless something is changed.
type scene struct {
	View
	now time.Time
}

func newScene(nodes ...string) *scene {
	s := &scene{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	s.Sets = map[string]string{HostSet: "t", PodSet: "t"}
	s.News = map[string]string{}
	for _, name := range nodes {
		s.Nodes = append(s.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		})
		r := v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, o := range []v1alpha1.ProbeOrigin{host, pod} {
			p := s.start(name, o)
			r.Status.Agents = append(r.Status.Agents, v1alpha1.AgentReport{Origin: o, Instance: string(p.UID)})
		}
		s.Reports = append(s.Reports, r)
	}
	return s
}

// start makes another pod of an agent.
func (s *scene) start(node string, o v1alpha1.ProbeOrigin) *corev1.Pod {
	role := map[v1alpha1.ProbeOrigin]string{host: v1alpha1.RoleAgent, pod: v1alpha1.RoleProbe}[o]
	name := setOf(o) + "-" + node
	s.Pods = append(s.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name + "-" + s.now.Format("150405")), CreationTimestamp: metav1.NewTime(s.now),
			Labels: map[string]string{v1alpha1.LabelRole: role}, Annotations: map[string]string{workload.TemplateAnnotation: "t"},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Image: "example.com/replumb:v1"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{},
			}}},
		},
	})
	return &s.Pods[len(s.Pods)-1]
}

func (s *scene) pod(node string, o v1alpha1.ProbeOrigin) *corev1.Pod {
	return newIndex(&s.View).pods[agentKey{node, o}]
}

func (s *scene) report(node string, o v1alpha1.ProbeOrigin) *v1alpha1.AgentReport {
	return newIndex(&s.View).reports[agentKey{node, o}]
}

// waits lets time pass, and all agents report but those of some nodes.
func (s *scene) waits(d time.Duration, mute ...string) *scene {
	s.now = s.now.Add(d)
	for i := range s.Reports {
		for j := range s.Reports[i].Status.Agents {
			if a := &s.Reports[i].Status.Agents[j]; !slices.Contains(mute, s.Reports[i].Name) {
				a.Sequence++
				a.ReportedAt = metav1.NewMicroTime(s.now)
			}
		}
	}
	return s
}

func (s *scene) look(m *ReportMemory) Outlook {
	s.From, s.Until = s.now, s.now
	return m.Look(s.View, time.Minute)
}

// seen is an outlook in short.
func seen(o Outlook) string {
	text := strings.Join(o.Reporting, " ")
	for _, m := range o.Missing {
		text += "\n" + m.Node + " " + string(m.Origin) + " " + string(m.Cause) + ": " + m.Reason
	}
	if note := o.Note(); note != "" {
		text += "\nnote: " + note
	}
	return strings.TrimSpace(text)
}

func expect(t *testing.T, got Outlook, want string) {
	t.Helper()
	if text := seen(got); text != want {
		t.Errorf("got:\n%s\nwant:\n%s", text, want)
	}
}

// TestWhatWasThereIsHearsay: reports of agents that may have stopped long ago prove nothing.
func TestWhatWasThereIsHearsay(t *testing.T) {
	s, m := newScene("a", "b"), &ReportMemory{}
	o := s.look(m)
	if len(o.Reporting) > 0 || len(o.Missing) != 4 {
		t.Errorf("at first: %+v", o)
	}
	expect(t, s.waits(10*time.Second, "b").look(m), "a\n"+
		"b Host Mute: pod agent-b runs, but has not reported since it was first looked for\n"+
		"b Pod Mute: pod probe-b runs, but has not reported since it was first looked for")
	expect(t, s.waits(10*time.Second).look(m), "a b")
}

// TestSilence: an agent is missing once nothing was heard of it for longer than it may take, by the
// clock of who listens.
func TestSilence(t *testing.T) {
	s, m := newScene("a", "b"), &ReportMemory{}
	s.look(m)
	s.waits(10 * time.Second).look(m)
	if o := s.waits(time.Minute, "b").look(m); len(o.Missing) > 0 {
		t.Errorf("too early: %+v", o.Missing)
	}
	expect(
		t,
		s.waits(time.Second, "b").look(m),
		"a\nb Host Mute: pod agent-b runs, but reports no more\nb Pod Mute: pod probe-b runs, but reports no more",
	)
	expect(t, s.waits(time.Second).look(m), "a b")
}

// TestReplaced: of a pod that is replaced the next one's reports count, not its own.
func TestReplaced(t *testing.T) {
	s, m := newScene("a"), &ReportMemory{}
	s.look(m)
	s.waits(10 * time.Second).look(m)
	s.pod("a", host).DeletionTimestamp = &metav1.Time{Time: s.now}
	expect(t, s.waits(10*time.Second, "a").look(m), "a Host Starting: pod agent-a is ending, and no other has been made")
	p := s.start("a", host)
	p.Status.Phase, p.Status.ContainerStatuses = corev1.PodPending, nil
	expect(t, s.waits(10*time.Second, "a").look(m), "a Host Starting: pod agent-a has not started")
	p = s.pod("a", host)
	p.Status.Phase = corev1.PodRunning
	expect(
		t,
		s.waits(10*time.Second).look(m),
		"a Host Mute: pod agent-a runs, but has not reported: what is reported is by instance \"agent-a-030405\"",
	)
	s.report("a", host).Instance, s.report("a", host).Sequence = string(p.UID), 1
	expect(t, s.look(m), "a")
}

// TestNodesThatAreNotReady: they are named, not waited for, and their agents have all the time
// again when they are back.
func TestNodesThatAreNotReady(t *testing.T) {
	s, m := newScene("a", "b"), &ReportMemory{}
	s.look(m)
	s.waits(10 * time.Second).look(m)
	s.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
	expect(t, s.waits(time.Hour, "b").look(m), "a\nnote: not ready and not waited for: b")
	s.Nodes[1].Status.Conditions[0].Status = corev1.ConditionTrue
	o := s.waits(time.Second, "b").look(m)
	if len(o.Missing) != 2 {
		t.Errorf("just back: %+v", o)
	}
}

func TestNodesWithoutAgents(t *testing.T) {
	s, m := newScene("a", "b"), &ReportMemory{}
	s.Nodes[1].Labels = map[string]string{corev1.LabelOSStable: "windows"}
	s.look(m)
	expect(t, s.waits(time.Second, "b").look(m), "a\nnote: no agent can run on b")
}

func TestClocks(t *testing.T) {
	for _, tt := range []struct {
		name string
		off  time.Duration
		want string
	}{
		{"right", 0, "a"},
		{"within bounds", 2 * time.Second, "a"},
		{"ahead", 5 * time.Second, "a\nnote: the clock of node a is more than 5s ahead"},
		{"late, maybe", -11 * time.Second, "a"}, // it may have come just after the look before, ten seconds ago
		{"behind", -15 * time.Second, "a\nnote: the clock of node a is more than 5s behind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, m := newScene("a"), &ReportMemory{}
			s.look(m)
			s.waits(10 * time.Second)
			s.report("a", host).ReportedAt = metav1.NewMicroTime(s.now.Add(tt.off))
			expect(t, s.look(m), tt.want)
		})
	}
}

// TestProbeIsAsked: it takes more than reports of the one that agents call.
func TestProbeIsAsked(t *testing.T) {
	s, m := newScene("a"), &ReportMemory{}
	s.look(m)
	s.waits(10 * time.Second).look(m)
	s.pod("a", pod).Status.Conditions[0].Status = corev1.ConditionFalse
	expect(t, s.waits(10*time.Second).look(m), "a Pod Starting: pod probe-a runs, but is not ready to be asked")
}

// TestTroubleIsTold: an agent that says that it cannot see is as good as none.
func TestTroubleIsTold(t *testing.T) {
	s, m := newScene("a"), &ReportMemory{}
	s.look(m)
	s.waits(10 * time.Second).look(m)
	s.report("a", pod).Problem = "blind"
	expect(t, s.waits(10*time.Second).look(m), "a Pod Trouble: pod probe-a reports: blind")
}

func TestSilentErrorNamesAFew(t *testing.T) {
	var all []Silent
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		all = append(all, Silent{Node: n, Cause: workload.NoImage, Reason: "no image"})
	}
	e := &SilentError{Missing: all}
	if late := (&SilentError{Missing: all[:1], For: time.Minute}).Error(); late != "nothing has been heard for 1m0s of node a: no image" {
		t.Error(late)
	}
	if !strings.HasSuffix(e.Error(), "; node e: no image; and 2 more agents") || !strings.HasPrefix(e.Advice(), "push the image") {
		t.Errorf("%s (%s)", e, e.Advice())
	}
	e = &SilentError{Missing: []Silent{{Node: "a", Cause: workload.NoPod, Reason: "refused"}, {Node: "b", Cause: workload.NoPod, Reason: "refused"}}}
	if e.Error() != "node a: refused; node b: the same" {
		t.Error(e)
	}
}
