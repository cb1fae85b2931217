package controlplane_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/kube/controlplane"
)

func TestPodSubnet(t *testing.T) {
	for text, want := range map[string]string{
		"kind: ClusterConfiguration\nnetworking: {podSubnet: '10.244.0.0/16,fd00::/56'}": "10.244.0.0/16,fd00::/56",
		"kind: ClusterConfiguration": "",
		"{":                          "",
		"":                           "",
	} {
		if got := controlplane.PodSubnet(&corev1.ConfigMap{Data: map[string]string{"ClusterConfiguration": text}}); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
