package rollout

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
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
	all := Changes{KubernetesMovedAt: noon, Services: map[string][]Span{"shop": {{Until: noon}}}, DNSSince: noon}
	only := func(c Changes, slack time.Duration) Changes { c.Slack = slack; return c }
	kubernetes := Changes{KubernetesMovedAt: noon}
	services := Changes{Services: map[string][]Span{"shop": {{Until: noon}}, "bank": {{Until: noon.Add(time.Hour)}}}}
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
		{"a static pod of kubeadm's", kubernetes, -time.Hour, func(p *corev1.Pod) {
			p.Namespace, p.Labels = metav1.NamespaceSystem, map[string]string{"tier": "control-plane"}
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0"}
		}, nil},
		{"a static pod of kOps'", kubernetes, -time.Hour, func(p *corev1.Pod) {
			p.Namespace, p.Labels = metav1.NamespaceSystem, map[string]string{"k8s-app": "kube-scheduler"}
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0"}
		}, nil},
		{"a static pod of somebody's", kubernetes, -time.Hour, func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "0"}
		}, []string{CarriesKubernetes}},
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

// TestServicesThatCameLater: an address is in the environment of those containers alone that were
// started while its Service had it.
func TestServicesThatCameLater(t *testing.T) {
	minute := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Minute) }
	old, late := Span{From: minute(-60), Until: minute(0)}, Span{From: minute(10), Until: minute(12)}
	for _, tt := range []struct {
		name    string
		spans   []Span
		started []int // containers, in minutes after noon
		want    time.Time
	}{
		{"before the first", []Span{old}, []int{-90}, time.Time{}},
		{"among the first", []Span{old, late}, []int{-30}, minute(0)},
		{"restarted between", []Span{old, late}, []int{5}, time.Time{}},
		{"control: without the creation of the late one", []Span{{Until: minute(12)}}, []int{5}, minute(12)},
		{"while the late one had its old address", []Span{old, late}, []int{11}, minute(12)},
		{"one container of two", []Span{old, late}, []int{5, 11}, minute(12)},
		{"after both", []Span{old, late}, []int{13}, time.Time{}},
		{"of both", []Span{old, late}, []int{-30, 11}, minute(12)},
	} {
		p := pod("web", 0)
		p.Status.ContainerStatuses = nil
		for _, at := range tt.started {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, running(time.Duration(at)*time.Minute))
		}
		c := Changes{Services: map[string][]Span{"shop": Spans(tt.spans)}}
		if got := c.servicesUntil(&p); !got.Equal(tt.want) {
			t.Errorf("%s: until %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestSpansAreJoined(t *testing.T) {
	at := func(n int) time.Time { return noon.Add(time.Duration(n) * time.Second) }
	got := Spans([]Span{{From: at(5), Until: at(6)}, {Until: at(1)}, {From: at(1), Until: at(3)}, {From: at(2), Until: at(2)}})
	if want := []Span{{Until: at(3)}, {From: at(5), Until: at(6)}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestOwnPodsAreNotRestarted: replumb's own pods know API servers by their own addresses, and ask
// for names where cluster DNS is. A tenant's pod that says the same of itself is the control.
func TestOwnPodsAreNotRestarted(t *testing.T) {
	c := Changes{
		KubernetesMovedAt: noon, DNSSince: noon,
		Services: map[string][]Span{"shop": {{Until: noon}}, v1alpha1.SystemNamespace: {{Until: noon}}},
	}
	own := pod("probe-x", -time.Hour, func(p *corev1.Pod) { p.Namespace = v1alpha1.SystemNamespace })
	if got := Stale(&own, c); len(got) > 0 {
		t.Errorf("replumb's own pod carries %v", got)
	}
	forged := pod("probe-x", -time.Hour, func(p *corev1.Pod) {
		p.Labels = map[string]string{v1alpha1.LabelRole: v1alpha1.RoleProbe, v1alpha1.LabelMigration: "m"}
	})
	if got := Stale(&forged, c); len(got) != 3 {
		t.Errorf("a pod with replumb's labels carries %v", got)
	}
}
