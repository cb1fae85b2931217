package agentset

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/pull"
)

// TestOrigins: what is expected of a node is what the DaemonSets run there.
func TestOrigins(t *testing.T) {
	for _, tt := range []struct {
		name, key, value string
		want             string
		apart            bool
	}{
		{"any", "zone", "a", "[Host Pod]", false},
		{"its pods leave", v1alpha1.LabelAgents, v1alpha1.HostAgent, "[Host]", true},
		{"it ends", v1alpha1.LabelAgents, v1alpha1.NoAgents, "[]", true},
		{"of Windows", corev1.LabelOSStable, "windows", "[]", false},
		{"of no machine", v1alpha1.LabelTrial, "true", "[]", false},
		{"says itself that it ends", v1alpha1.LabelAgentsBefore, v1alpha1.NoAgents, "[Host Pod]", false},
		{"says itself that it is no machine", v1alpha1.LabelRole, v1alpha1.RoleCanary, "[Host Pod]", false},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{tt.key: tt.value}}}
		if got := fmt.Sprint(Origins(n)); got != tt.want || Apart(n) != tt.apart {
			t.Errorf("%s: agents are expected in %s, want %s; apart: %v", tt.name, got, tt.want, Apart(n))
		}
		if got := fmt.Sprint(runsOn(t, n)); got != tt.want {
			t.Errorf("%s: DaemonSets run in %s, want %s", tt.name, got, tt.want)
		}
	}
}

// runsOn are the networks that DaemonSets would have pods in.
func runsOn(t *testing.T, n *corev1.Node) (all []v1alpha1.ProbeOrigin) {
	t.Helper()
	s := &Set{Migration: "m", Image: pull.Image{Name: "i"}}
	for _, o := range []v1alpha1.ProbeOrigin{host, pod} {
		build := map[v1alpha1.ProbeOrigin]func([]string) ([]client.Object, error){host: objects{s}.hostSet, pod: objects{s}.podSet}[o]
		objects, err := build([]string{"192.0.2.1:6443"})
		if err != nil {
			t.Fatal(err)
		}
		p := &corev1.Pod{Spec: objects[0].(*appsv1.DaemonSet).Spec.Template.Spec}
		fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
		if err != nil {
			t.Fatal(err)
		}
		if fits {
			all = append(all, o)
		}
	}
	return all
}
