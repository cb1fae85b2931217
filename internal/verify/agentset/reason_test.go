package agentset

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestReasons(t *testing.T) {
	waiting := func(reason, message string) func(*scene, *corev1.Pod) {
		return func(_ *scene, p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*scene, *corev1.Pod)
		want   string
	}{
		{"refused", func(s *scene, _ *corev1.Pod) {
			s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return p.Name == "agent-a" })
			s.News[HostSet] = `Error creating: pods "agent-" is forbidden: exceeded quota`
		}, `NoPod: there is no pod of daemonset replumb-system/agent: Error creating: pods "agent-" is forbidden: exceeded quota`},
		{"no set", func(s *scene, _ *corev1.Pod) { delete(s.Sets, HostSet) }, "NoPod: daemonset replumb-system/agent does not exist"},
		{"older", func(s *scene, _ *corev1.Pod) { s.Sets[HostSet] = "u" }, "Starting: pod agent-a is to be replaced"},
		{"not scheduled", func(_ *scene, p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses = "", corev1.PodPending, nil
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{
						{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
					},
				}}},
			}}
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available: 1 Insufficient cpu."},
			}
		}, "Unscheduled: pod agent-a is not scheduled: 0/1 nodes are available: 1 Insufficient cpu."},
		{
			"image", waiting("ImagePullBackOff", `Back-off pulling image "example.com/replumb:v1": not found`),
			`NoImage: pod agent-a has no image example.com/replumb:v1: ImagePullBackOff: Back-off pulling image "example.com/replumb:v1": not found`,
		},
		{"network", func(s *scene, p *corev1.Pod) {
			waiting("ContainerCreating", "")(s, p)
			s.News["agent-a"] = "Failed to create pod sandbox: no addresses"
		}, "Starting: pod agent-a has not started: ContainerCreating: Failed to create pod sandbox: no addresses"},
		{"pulling", func(s *scene, p *corev1.Pod) {
			waiting("ContainerCreating", "")(s, p)
			s.News["agent-a"] = `Pulling image "example.com/replumb:v1"`
		}, `NoImage: pod agent-a has no image example.com/replumb:v1 yet: Pulling image "example.com/replumb:v1"`},
		{"crash", func(s *scene, p *corev1.Pod) {
			waiting("CrashLoopBackOff", "back-off 10s")(s, p)
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: 2, Reason: "Error", Message: "starting\nerror: NODE_NAME is not set\n",
			}
		}, "Ends: pod agent-a ended with code 2: error: NODE_NAME is not set"},
		{"memory", func(_ *scene, p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"},
			}
		}, "Ends: pod agent-a ended with code 137: OOMKilled"},
		{"evicted", func(_ *scene, p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}
		}, "Ends: pod agent-a has failed: Evicted The node was low on resource: memory."},
		{"never reported", func(s *scene, _ *corev1.Pod) {
			s.Reports[0].Status.Agents = s.Reports[0].Status.Agents[1:]
		}, "Mute: pod agent-a runs, but has not reported"},
		{"trouble", func(s *scene, _ *corev1.Pod) {
			s.report("a", host).Problem = "connection tracking cannot be read: operation not permitted"
		}, "Trouble: pod agent-a reports: connection tracking cannot be read: operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, m := newScene("a"), &ReportMemory{}
			s.look(m)
			s.waits(10 * time.Second).look(m)
			tt.change(s, s.pod("a", host))
			expect(t, s.waits(10*time.Second).look(m), "a Host "+tt.want)
		})
	}
}
