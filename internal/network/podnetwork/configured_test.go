package podnetwork

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConfiguredBy(t *testing.T) {
	for _, tt := range []struct{ name, key, value, want string }{
		{"kube-flannel-cfg", "net-conf.json", `{"Network": "10.244.0.0/16"}`, "[{net-conf.json Network 10.244.0.0/16}]"},
		{
			"any", "net-conf.json", `{"Network": "10.244.0.0/16", "IPv6Network": "fd00::/56"}`,
			"[{net-conf.json Network 10.244.0.0/16} {net-conf.json IPv6Network fd00::/56}]",
		},
		{"kube-flannel-cfg", "net-conf.json", `{`, "[]"},
		{
			"cilium-config", "cluster-pool-ipv4-cidr", "10.0.0.0/16 10.1.0.0/16",
			"[{cluster-pool-ipv4-cidr 10.0.0.0/16} {cluster-pool-ipv4-cidr 10.1.0.0/16}]",
		},
		{"another", "cluster-pool-ipv4-cidr", "10.0.0.0/16", "[]"},
	} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tt.name}, Data: map[string]string{tt.key: tt.value}}
		if got := fmt.Sprint(ConfiguredBy(cm)); got != tt.want {
			t.Errorf("%s of %s: %s, want %s", tt.key, tt.name, got, tt.want)
		}
	}
}
