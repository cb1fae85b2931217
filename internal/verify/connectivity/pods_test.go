package connectivity

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/internal/kube/pull"
)

// TestPullSecrets: pods that answer and pods that call have those of the step, and with none they
// are as ever.
func TestPullSecrets(t *testing.T) {
	bare := &Step{Migration: "m", Image: pull.Image{Name: "i"}}
	for _, tt := range []struct {
		secrets []string
		want    []corev1.LocalObjectReference
	}{
		{nil, nil},
		{[]string{}, nil},
		{[]string{"registry", "mirror"}, []corev1.LocalObjectReference{{Name: "registry"}, {Name: "mirror"}}},
	} {
		s := &Step{Migration: "m", Image: pull.Image{Name: "i", Secrets: tt.secrets}}
		for _, role := range []string{RoleAnswer, roleCall} {
			pod := s.pods().pod(role, "a", nil)
			if got := pod.Spec.ImagePullSecrets; !slices.Equal(got, tt.want) || pod.Spec.Containers[0].Image != "i" {
				t.Errorf("%v: pods that %s have %v", tt.secrets, role, got)
			}
			pod.Spec.ImagePullSecrets = nil
			if was := bare.pods().pod(role, "a", nil); !equality.Semantic.DeepEqual(pod, was) {
				t.Errorf("%v: pods that %s differ in more: %+v", tt.secrets, role, pod)
			}
		}
	}
}

// TestWhomThePolicyLetsIn: pods of the role that asks or, where those are seen with the address of
// a node, anyone; always at one port.
func TestWhomThePolicyLetsIn(t *testing.T) {
	for _, anyone := range []bool{false, true} {
		rules := (&Pods{Migration: "m", Anyone: anyone}).policy("ask").Spec.Ingress
		if len(rules) != 1 || len(rules[0].Ports) != 1 || (len(rules[0].From) == 0) != anyone {
			t.Errorf("anyone %v: %+v", anyone, rules)
		}
	}
}
