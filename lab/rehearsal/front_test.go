package rehearsal

import "testing"

func TestNodeProxy(t *testing.T) {
	for _, tt := range []struct {
		path, node string
		port       int32
		rest       string
		leads      bool
	}{
		{"/api/v1/nodes/a/proxy/configz", "a", 0, "configz", true},
		{"/api/v1/nodes/a:31000/proxy/", "a", 31000, "", true},
		{"/api/v1/nodes/a", "", 0, "", false},
		{"/api/v1/nodes/a/status", "", 0, "", false},
		{"/api/v1/namespaces/shop/pods/proxy", "", 0, "", false},
		{"/api/v1/namespaces/shop/pods/a/proxy/x", "", 0, "", true},
		{"/api/v1/namespaces/shop/services/http:a:80/proxy/", "", 0, "", true},
		{"/api/v1/namespaces/shop/pods/a/exec", "", 0, "", true},
		{"/api/v1/namespaces/shop/pods/a/log", "", 0, "", true},
		{"/api/v1/namespaces/shop/pods/a/eviction", "", 0, "", false},
		{"/api/v1/namespaces/shop/services/a/status", "", 0, "", false},
		{"/apis/apps/v1/namespaces/shop/deployments/a", "", 0, "", false},
	} {
		node, port, rest, leads := nodeProxy(tt.path)
		if node != tt.node || port != tt.port || rest != tt.rest || leads != tt.leads {
			t.Errorf("%s: %q, %d, %q, %t", tt.path, node, port, rest, leads)
		}
	}
}

func TestRenamed(t *testing.T) {
	said := `{"kubeletconfig":{"clusterDNS":["10.96.0.10","169.254.20.10"],"clusterDomain":"cluster.local"}}`
	for want, to := range map[string]map[string]string{
		said: nil,
		`{"kubeletconfig":{"clusterDNS":["172.24.0.10","169.254.20.10"],"clusterDomain":"cluster.local"}}`: {"10.96.0.10": "172.24.0.10"},
	} {
		got, err := renamed([]byte(said), to)
		if err != nil || string(got) != want {
			t.Errorf("%v: %s, %v", to, got, err)
		}
	}
}
