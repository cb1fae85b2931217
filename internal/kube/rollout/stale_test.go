package rollout

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(offset time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(offset)} }

func running(offset time.Duration) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *at(offset)}}}
}

// pod runs one container since offset after noon.
func pod(name string, offset time.Duration, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-1"},
		Spec:       corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst, NodeName: "n1"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, StartTime: at(offset), ContainerStatuses: []corev1.ContainerStatus{running(offset)},
		},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestStale(t *testing.T) {
	all := Changes{KubernetesMovedAt: noon, MovedAt: map[string]time.Time{"shop": noon}, DNSSince: noon}
	only := func(c Changes, slack time.Duration) Changes { c.Slack = slack; return c }
	kubernetes := Changes{KubernetesMovedAt: noon}
	services := Changes{MovedAt: map[string]time.Time{"shop": noon, "bank": noon.Add(time.Hour)}}
	dns := Changes{DNSSince: noon}
	yes, no := true, false
	everything := []string{CarriesKubernetes, CarriesServices, CarriesDNS}
	for _, tt := range []struct {
		name    string
		changes Changes
		started time.Duration
		pod     func(*corev1.Pod)
		want    []string
	}{
		{"before", all, -time.Hour, nil, everything},
		{"after", all, time.Second, nil, nil},
		{"equal second", all, 0, nil, everything},
		{"no change", Changes{}, -time.Hour, nil, nil},
		{"within the second of the change", Changes{KubernetesMovedAt: noon.Add(700 * time.Millisecond)}, 0, nil, []string{CarriesKubernetes}},
		{"slack", only(all, 5*time.Second), 5 * time.Second, nil, everything},
		{"beyond slack", only(all, 5*time.Second), 6 * time.Second, nil, nil},
		{"slack without a change", only(Changes{}, time.Hour), -time.Second, nil, nil},
		{"succeeded", all, -time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, nil},
		{"failed", all, -time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil},
		{"ending", kubernetes, -time.Hour, func(p *corev1.Pod) { p.DeletionTimestamp = at(0) }, []string{CarriesKubernetes}},

		{"links by default", services, -time.Hour, nil, []string{CarriesServices}},
		{"links asked for", services, -time.Hour, func(p *corev1.Pod) { p.Spec.EnableServiceLinks = &yes }, []string{CarriesServices}},
		{"no links", services, -time.Hour, func(p *corev1.Pod) { p.Spec.EnableServiceLinks = &no }, nil},
		{"no links, but kubernetes", kubernetes, -time.Hour, func(p *corev1.Pod) { p.Spec.EnableServiceLinks = &no }, []string{CarriesKubernetes}},
		{"a later move in its namespace", services, time.Minute, func(p *corev1.Pod) { p.Namespace = "bank" }, []string{CarriesServices}},
		{"another namespace", services, -time.Hour, func(p *corev1.Pod) { p.Namespace = "zoo" }, nil},

		{"container restarted", all, -time.Hour, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = running(time.Minute)
		}, []string{CarriesDNS}},
		{"one of two restarted", kubernetes, time.Minute, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, running(-time.Minute))
		}, []string{CarriesKubernetes}},
		{"sidecar among the init containers", kubernetes, time.Minute, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{running(-time.Minute)}
		}, []string{CarriesKubernetes}},
		{"init container that has ended", kubernetes, time.Minute, func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{StartedAt: *at(-time.Minute)},
			}}}
		}, nil},
		{"no container yet", kubernetes, -time.Hour, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, nil},
		{"waiting container", kubernetes, -time.Hour, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
		}, nil},

		{"not seen by a kubelet", dns, -time.Hour, func(p *corev1.Pod) { p.Status.StartTime = nil }, nil},
		{"host network", dns, -time.Hour, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, nil},
		{"host network with cluster DNS", dns, -time.Hour, func(p *corev1.Pod) {
			p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		}, []string{CarriesDNS}},
		{"node's DNS", dns, -time.Hour, func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSDefault }, nil},
		{"DNS of its own", dns, -time.Hour, func(p *corev1.Pod) { p.Spec.DNSPolicy = corev1.DNSNone }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pod("p", tt.started)
			if tt.pod != nil {
				tt.pod(&p)
			}
			if got := Stale(&p, tt.changes); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			slim := slimPod(&p)
			if got := Stale(&slim, tt.changes); !slices.Equal(got, tt.want) {
				t.Errorf("as kept by Load: got %q, want %q", got, tt.want)
			}
		})
	}
}
