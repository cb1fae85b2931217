package etcdrelay

import (
	"strings"
	"testing"
)

// usual are flags as kubeadm writes them.
func usual() map[string]string {
	return map[string]string{
		"etcd-servers": "https://127.0.0.1:2379", "etcd-cafile": Files().CA, "etcd-certfile": Files().Cert, "etcd-keyfile": Files().Key,
	}
}

func TestUnusual(t *testing.T) {
	for name, tt := range map[string]struct {
		change map[string]string
		want   string
	}{
		"as kubeadm writes it":   {nil, ""},
		"in a cluster of IPv6":   {map[string]string{"etcd-servers": "https://[::1]:2379"}, ""},
		"external etcd":          {map[string]string{"etcd-servers": "https://192.0.2.7:2379,https://192.0.2.8:2379"}, "is not https://127.0.0.1:2379"},
		"another port":           {map[string]string{"etcd-servers": "https://127.0.0.1:4001"}, "is not https://127.0.0.1:2379"},
		"without TLS":            {map[string]string{"etcd-servers": "http://127.0.0.1:2379"}, "is not https://127.0.0.1:2379"},
		"events in another etcd": {map[string]string{"etcd-servers-overrides": "/events#https://127.0.0.1:2382"}, "may be in another etcd"},
		"another prefix":         {map[string]string{"etcd-prefix": "/k8s"}, "--etcd-prefix=/k8s"},
		"the prefix by name":     {map[string]string{"etcd-prefix": "/registry"}, ""},
		"another folder":         {map[string]string{"etcd-keyfile": "/etc/ssl/etcd/client.key"}, "--etcd-keyfile=/etc/ssl/etcd/client.key"},
		"no authority":           {map[string]string{"etcd-cafile": ""}, "which is not /etc/kubernetes/pki/etcd/ca.crt"},
	} {
		flags := usual()
		for flag, value := range tt.change {
			flags[flag] = value
		}
		got := Unusual(func(flag string) (string, bool) {
			value, given := flags[flag]
			return value, given
		}, "/registry")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
