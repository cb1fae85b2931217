package workload

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestServersAreKept: programs that know all API servers are not restarted because one is away.
func TestServersAreKept(t *testing.T) {
	pod := func(servers []string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"x", APIFlag + strings.Join(servers, ",")}}}},
		}
	}
	for _, kind := range []func(servers []string) ([]client.Object, error){
		func(servers []string) ([]client.Object, error) {
			return []client.Object{&appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{Kind: "DaemonSet"}, Spec: appsv1.DaemonSetSpec{Template: pod(servers)}}}, nil
		},
		func(servers []string) ([]client.Object, error) {
			return []client.Object{&appsv1.Deployment{TypeMeta: metav1.TypeMeta{Kind: "Deployment"}, Spec: appsv1.DeploymentSpec{Template: pod(servers)}}}, nil
		},
	} {
		have := &Apply{Build: kind}
		for _, tt := range []struct{ known, now, want string }{
			{"a:1,b:1", "a:1,b:1", "a:1,b:1"},
			{"a:1,b:1,c:1", "a:1,c:1", "a:1,b:1,c:1"}, // one is away
			{"a:1,b:1", "a:1,c:1", "a:1,c:1"},
			{"a:1", "a:1,b:1", "a:1,b:1"},
		} {
			objects, err := have.objects(strings.Split(tt.known, ","))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(servers(strings.Split(tt.now, ","), objects[0]), ","); got != tt.want {
				t.Errorf("known %s, now %s: got %s, want %s", tt.known, tt.now, got, tt.want)
			}
		}
	}
}

// TestLongLogsAreCut: what a container said may be thousands of characters, of any kind.
func TestLongLogsAreCut(t *testing.T) {
	if got := And("x", strings.Repeat("ü", 1000)); got != "x: "+strings.Repeat("ü", longest)+"…" {
		t.Errorf("got %q", got)
	}
}

// TestReplicasPreferControlPlanes: with the token of one, root on its node has the rights of all.
// Where there is no control plane to run on, they run elsewhere.
func TestReplicasPreferControlPlanes(t *testing.T) {
	nodes := Replica(PodOptions{CPU: "1m", Memory: "1Mi", MemoryLimit: "1Mi"}, map[string]string{"a": "b"}).Affinity.NodeAffinity
	terms, err := nodeaffinity.NewPreferredSchedulingTerms(nodes.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		t.Fatal(err)
	}
	score := func(label string) int64 {
		return terms.Score(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{label: ""}}})
	}
	if worker := score("role"); score(controlPlane) <= worker || score(master) <= worker {
		t.Errorf("preferences: %+v", nodes.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}
