package agentset

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/workload"
)

// TestPullSecrets: the pods of both DaemonSets have them. With others they are other pods, with
// none they are as ever.
func TestPullSecrets(t *testing.T) {
	for _, tt := range []struct {
		secrets []string
		want    []corev1.LocalObjectReference
	}{
		{nil, nil},
		{[]string{}, nil},
		{[]string{"registry", "mirror"}, []corev1.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}},
	} {
		for _, roll := range []bool{false, true} {
			bare, s := templates(t, &Set{Image: pull.Image{Name: "i"}, Roll: roll}),
				templates(t, &Set{Image: pull.Image{Name: "i", Secrets: tt.secrets}, Roll: roll})
			for i := range s {
				if got := s[i].Spec.ImagePullSecrets; !slices.Equal(got, tt.want) {
					t.Errorf("%v: DaemonSet %d has %v", tt.secrets, i, got)
				}
				same := s[i].Annotations[workload.TemplateAnnotation] == bare[i].Annotations[workload.TemplateAnnotation]
				if same != (len(tt.want) == 0) {
					t.Errorf("%v: DaemonSet %d has the pods of one without: %v", tt.secrets, i, same)
				}
			}
		}
	}
}

// templates are those of the pods on nodes, and in the network of pods.
func templates(t *testing.T, s *Set) []corev1.PodTemplateSpec {
	t.Helper()
	host, err := objects{s}.hostSet(nil)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := objects{s}.podSet(nil)
	if err != nil {
		t.Fatal(err)
	}
	return []corev1.PodTemplateSpec{host[0].(*appsv1.DaemonSet).Spec.Template, pods[0].(*appsv1.DaemonSet).Spec.Template}
}
